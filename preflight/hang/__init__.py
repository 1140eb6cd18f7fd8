"""After a hang or a death: which rank, where, and why; pure judgement over what was left behind."""
