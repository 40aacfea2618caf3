"""The kinds of difference between a call and eager's, by name."""

KINDS = {
    "compile": "compiling raises",
    "error": "the call raises, eager does not",
    "no error": "eager raises, the call does not",
    "other error": "both raise, of classes that do not fit",
    "structure": "another number or type of outputs",
    "dtype": "an output has another type",
    "shape": "an output has another shape",
    "strides": "an output has other strides",
    "alias": "memory is shared otherwise than eager's",
    "mutation": "inputs are written otherwise than by eager",
    "value": "numbers differ",
    "pattern": "NaNs or infinities differ",
    "sign of zero": "the sign of a zero differs",
    "crash": "the process died",
    "hang": "the process had to be stopped",
}
