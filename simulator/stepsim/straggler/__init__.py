"""The straggler calculator: what one slow GPU, or ordinary variation, costs a job that waits for its slowest GPU.

A teaching model, simpler than the simulator: a step is load, compute and all-reduce, one after the other.
"""

from stepsim.straggler.answer import Answer, Bar, solve
from stepsim.straggler.question import Straggler, StragglerError

__all__ = ["Answer", "Bar", "Straggler", "StragglerError", "solve"]
