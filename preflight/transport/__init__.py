"""How nodes are reached: paramiko, OpenSSH, srun, ranks of torchrun, this machine.

`ways` chooses. SSH: `ssh_config` and `host_keys` serve `paramiko_ssh` and `openssh`, which has its
logins from `openssh_logins`. Slurm: `srun` starts relays, which call back to `relay`. torchrun:
`torchrun_ranks` asks ranks through `job_store_hub`; each is a `rank_follower`; their notes are in
`job_store`. Over any of them `bundle` sends the payload, and `payload_session` talks with it.
"""
