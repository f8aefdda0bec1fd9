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
    // Of groups of channels of a channel-blocked image: its places, and its blocks. The places are 0 otherwise.
    places: u32,
    blocks: u32,
}

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read> r: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Where an element of a row lies. Of a group of channels, those of one place follow one another.
fn place(row: u32, i: u32) -> u32 {
    let s = params.shape;
    if s.places == 0u {
        return row / s.step * s.k * s.step + row % s.step + i * s.step;
    }
    let width = s.k / s.places;
    let channel = row % s.scale_period * width + i % width;
    return ((row / s.scale_period * s.blocks + channel / 16u) * s.places + i / width) * 16u + channel % 16u;
}

// Which scale is an element's.
fn scale_of(row: u32, i: u32) -> u32 {
    let s = params.shape;
    if s.places == 0u {
        return min(row % s.scale_period * s.scale_width + i / s.scale_inner, s.scale_last);
    }
    let width = s.k / s.places;
    return row % s.scale_period * width + i % width;
}

fn value(i: u32) -> f32 {
    if params.shape.in_place == 1u {
        return y[params.call.y_at + i];
    }
    return x[params.call.x_at + i];
}

