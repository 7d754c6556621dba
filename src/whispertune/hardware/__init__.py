"""What this machine has, read from the system itself.

Standard library only (and `whispertune.errors`): the set-up script imports this package before anything is
installed, and it must tell the truth on a machine without torch.
"""
