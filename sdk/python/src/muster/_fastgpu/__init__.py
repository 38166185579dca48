"""Machines as FastGPU's users know them, for the packages `ncluster` and `fastgpu`, which differ in names alone.

A group of machines is one muster job of kind `machine` with a task for each of them; `run` goes to a session of the
task. What a user's script may see (names, prints, exceptions) is theirs; everything else is muster's.
"""
