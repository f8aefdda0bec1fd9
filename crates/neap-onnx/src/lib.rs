//! ONNX to IR: weights become byte ranges, dimensions are bound, constants fold.
