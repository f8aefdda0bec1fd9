// Images made larger or smaller by the nearest or the two nearest elements of each axis: which, and how much of each,
// tables say.

struct Shape {
    elements: u32,
    in_h: u32,
    in_w: u32,
    out_h: u32,
    out_w: u32,
    // Elements of one place: 16 of a block, or 1 if plain.
    lanes: u32,
}

@group(0) @binding(1) var<storage, read> x: array<f32>;
// Of each row and then of each column: low, high, and the bits of how much of each.
@group(0) @binding(2) var<storage, read> w: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let s = params.shape;
    for (var i = id.x; i < s.elements; i += groups.x * 64u) {
        let lane = i % s.lanes;
        let place = i / s.lanes;
        let col = params.call.w_at + (s.out_h + place % s.out_w) * 4u;
        let row = params.call.w_at + place / s.out_w % s.out_h * 4u;
        let plane = place / s.out_w / s.out_h * s.in_h;
        let low = (plane + w[row]) * s.in_w;
        let high = (plane + w[row + 1u]) * s.in_w;
        let left = w[col];
        let right = w[col + 1u];
        let of_left = bitcast<f32>(w[col + 2u]);
        let of_right = bitcast<f32>(w[col + 3u]);
        let x_at = params.call.x_at + lane;
        let above = x[x_at + (low + left) * s.lanes] * of_left + x[x_at + (low + right) * s.lanes] * of_right;
        let below = x[x_at + (high + left) * s.lanes] * of_left + x[x_at + (high + right) * s.lanes] * of_right;
        y[params.call.y_at + i] = above * bitcast<f32>(w[row + 2u]) + below * bitcast<f32>(w[row + 3u]);
    }
}
