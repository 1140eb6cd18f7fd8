"""The network between nodes: the schedule of pairs, the measurements, and the parts at fault.

How a slow pair becomes a message: `observed.observe` condenses what both ends measured;
`compare` says which pairs are bad outright (failed, or slow beyond any doubt). `decoding.find`
names the culprits, in one list: first those behind outright bad pairs, from the graph of good and
bad pairs, then what single pairs do not show (some per cent of bandwidth, rare spikes, late hosts),
unless an earlier culprit explains it. `outright_blame` and `statistical_blame` write the messages,
and `judge.judge_sweep` joins them pair by pair for a run and for `preflight blame`.

All of them describe a `samples.Meeting`, one pair on one rail in one round: `PairSamples` as
measured, `PairResult` and `Digest` condensed, `PairJudgement` compared with its peers,
`measure.Pair` as its check sees it.
"""
