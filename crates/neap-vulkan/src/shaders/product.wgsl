// Products of two activations, by strides: batch, rows, columns. One invocation: four rows of four columns.

struct Shape {
    m: u32,
    k: u32,
    n: u32,
    // Three axes of matrices; the first is outermost.
    batch_0: u32,
    batch_1: u32,
    batch_2: u32,
    a_batch_0: u32,
    a_batch_1: u32,
    a_batch_2: u32,
    b_batch_0: u32,
    b_batch_1: u32,
    b_batch_2: u32,
    a_row: u32,
    a_col: u32,
    b_row: u32,
    b_col: u32,
    // Of what is added, times beta.
    c_row: u32,
    c_col: u32,
    has_c: u32,
    alpha: f32,
    beta: f32,
    // Matrices before these.
    first: u32,
}

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read> r: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    let across = (s.n + 3u) / 4u;
    let row = id.x / across * 4u;
    let col = id.x % across * 4u;
    if row >= s.m {
        return;
    }
    let matrix = s.first + id.y;
    let i2 = matrix % s.batch_2;
    let i1 = matrix / s.batch_2 % s.batch_1;
    let i0 = matrix / s.batch_2 / s.batch_1;
    let a_first = params.call.x_at + i0 * s.a_batch_0 + i1 * s.a_batch_1 + i2 * s.a_batch_2;
    let b_first = params.call.w_at + i0 * s.b_batch_0 + i1 * s.b_batch_1 + i2 * s.b_batch_2;
    // Those past the last row or column are computed like the last, and not stored.
    let rows = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(s.m - 1u));
    let cols = min(vec4<u32>(col) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(s.n - 1u));
    var a_at = vec4<u32>(a_first) + rows * s.a_row;
    var b_at = vec4<u32>(b_first) + cols * s.b_col;
    var sum_0 = vec4<f32>(0.0);
    var sum_1 = vec4<f32>(0.0);
    var sum_2 = vec4<f32>(0.0);
    var sum_3 = vec4<f32>(0.0);
    for (var k = 0u; k < s.k; k++) {
        let b = vec4<f32>(w[b_at.x], w[b_at.y], w[b_at.z], w[b_at.w]);
        sum_0 += x[a_at.x] * b;
        sum_1 += x[a_at.y] * b;
        sum_2 += x[a_at.z] * b;
        sum_3 += x[a_at.w] * b;
        a_at += vec4<u32>(s.a_col);
        b_at += vec4<u32>(s.b_row);
    }
    var sums = array<vec4<f32>, 4>(sum_0, sum_1, sum_2, sum_3);
    let y_first = params.call.y_at + matrix * s.m * s.n;
    for (var p = 0u; p < min(4u, s.m - row); p++) {
        for (var q = 0u; q < min(4u, s.n - col); q++) {
            var value = s.alpha * sums[p][q];
            if s.has_c == 1u {
                value += s.beta * r[params.call.r_at + (row + p) * s.c_row + (col + q) * s.c_col];
            }
            y[y_first + (row + p) * s.n + col + q] = value;
        }
    }
}
