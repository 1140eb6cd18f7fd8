"""How nodes are reached: paramiko, OpenSSH, srun, the ranks of a torchrun, or this machine."""
