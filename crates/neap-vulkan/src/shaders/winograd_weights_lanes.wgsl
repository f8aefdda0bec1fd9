// Of Winograd: from panels to matrices. One invocation: four channels of output for one of input, or four biases.

@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

fn row(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> array<vec4<f32>, 4> {
    let ends = 0.5 * (a + c);
    return array<vec4<f32>, 4>(a, ends + 0.5 * b, ends - 0.5 * b, c);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    let rows = s.c_in + 1u;
    if id.x >= rows * 4u {
        return;
    }
    // Biases come first.
    let row_of = id.x / 4u;
    let j = id.x % 4u;
    let c = max(row_of, 1u) - 1u;
    let block = c / 16u * 16u;
    // Panels have the channels of a block side by side, tap by tap, behind 16 biases.
    let width = min(16u, s.c_in - block);
    let from_panel = params.call.w_at + id.y * (1u + 9u * s.c_in) * 4u;
    let at = from_panel + (1u + block * 9u + c - block) * 4u + j;
    let tap = width * 4u;
    let r0 = row(w[at], w[at + 3u * tap], w[at + 6u * tap]);
    let r1 = row(w[at + tap], w[at + 4u * tap], w[at + 7u * tap]);
    let r2 = row(w[at + 2u * tap], w[at + 5u * tap], w[at + 8u * tap]);
    let point = s.panels * rows * 4u;
    let to = params.call.y_at + id.y * rows * 4u + id.x;
    for (var i = 0u; i < 4u; i++) {
        let all = row(r0[i], r1[i], r2[i]);
        for (var k = 0u; k < 4u; k++) {
            y[to + (i * 4u + k) * point] = select(vec4<f32>(0.0), all[k], row_of > 0u);
        }
    }
}
