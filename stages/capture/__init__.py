"""Capture: a model and its inputs become graphs of functional ATen. See `flat.run` and `backend.make_backend`."""

from stages.capture.backend import make_backend
from stages.capture.breaks import GraphBreak
from stages.capture.caller import FlatCaller
from stages.capture.config import CaptureConfig
from stages.capture.flat import Captured, run
from stages.capture.recorder import Slot
from stages.capture.signature import SignatureMismatch

__all__ = ["CaptureConfig", "Captured", "FlatCaller", "GraphBreak", "SignatureMismatch", "Slot", "make_backend", "run"]
