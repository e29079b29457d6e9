"""The phases of a training step, in the order in which a step passes through them.

To add a phase: add it here, and give it an equation in ``stepsim.model``.
"""

PHASES = ("data_wait", "h2d", "forward", "backward", "allreduce", "optimizer", "checkpoint", "other")

DATA_WAIT, H2D, FORWARD, BACKWARD, ALLREDUCE, OPTIMIZER, CHECKPOINT, OTHER = range(len(PHASES))
