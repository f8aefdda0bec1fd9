// What is told of rows, and how they are read.

struct Shape {
    rows: u32,
    k: u32,
    // 0: softmax, 1: layer norm, 2: norm by root mean square, 3: logarithm of softmax
    kind: u32,
    has_shift: u32,
    epsilon: f32,
    in_place: u32,
    // From element to element, which is how many rows lie inside each other.
    step: u32,
    // How a row and an element find their scale: `(row % period) * width + element / inner`, and no further than the last.
    scale_period: u32,
    scale_width: u32,
    scale_inner: u32,
    scale_last: u32,
}

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read> r: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn value(i: u32) -> f32 {
    if params.shape.in_place == 1u {
        return y[params.call.y_at + i];
    }
    return x[params.call.x_at + i];
}

