"""The network between nodes: the schedule of pairs, the measurements, and the parts at fault.

How a slow pair becomes a message: `observed.observe` condenses what both ends measured;
`compare` says which pairs are bad outright (failed, or slow beyond any doubt). `decoding.find`
names the culprits, in one list: first those behind outright bad pairs, from the graph of good and
bad pairs, then what single pairs do not show (some per cent of bandwidth, rare spikes, late hosts),
unless an earlier culprit explains it. `outright_blame` and `statistical_blame` write the messages,
and `judge.judge_sweep` joins them pair by pair for a run and for `preflight blame`.

All of these describe a `samples.Meeting`, one pair on one rail in one round: `PairSamples` as
measured, `PairResult` and `Digest` condensed, `PairJudgement` compared with its peers,
`pair_summary.Pair` as its check sees it.

The files in the order of a run:

- plan: `schedule` numbers the rounds, `planner` chooses some, `sweep_plan` has sizes and deadlines
- measure: `launch` runs a sweep; `agents` are its sessions, `roster` says which rails take part,
  `agent_events` are what they send, `collect` keeps it
- look at it: `samples` (every iteration) and `observed` (condensed); `stored` reads both from files
  that `impossible_samples` accepts; `pair_summary` and `compare` judge a pair by itself
- blame: `decoding`, then `phrases`, `outright_blame`, `statistical_blame`, `socket_fallback`;
  `retest` says what is measured again, and what that decides
- `node_allreduce` and `nvlink_domain` judge what is measured besides pairs over NICs
- `judge` joins all of it
"""
