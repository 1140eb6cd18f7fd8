"""How nodes are reached: paramiko, OpenSSH, srun, ranks of torchrun, this machine."""
