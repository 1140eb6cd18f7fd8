"""The network between nodes: who is paired when, what was measured, and who is to blame.

Which module decides what: `compare` says which pairs are bad outright (failed, or slow beyond any
doubt), and `blame` whose fault that is, by the graph of good and bad pairs (`decoding.explain`).
`decoding.find` knows nothing of either: it tests all digests for what only many samples together
show (some per cent of bandwidth, rare spikes, late hosts). `judge.judge_sweep` merges both for a
run and `preflight blame`; the outright finding wins: what `decoding` finds of parts that are blamed
already is left out by `statistical_blame`, which words the rest. What both are made of is a
`samples.Meeting`, one pair on one rail in one round: `PairSamples` as measured, `PairResult` and
`Digest` condensed, `PairJudgement` compared with its peers, `measure.Pair` as its check sees it.
"""
