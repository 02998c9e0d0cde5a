"""Files, processes, ranks, devices, untrusted input and errors: what every layer may need.

This package has no names of its own, because hardware.py imports torch.
"""
