// `linear.wgsl` for drivers that compute on the processor; see `conv_lanes.wgsl`. Rows are a multiple of four numbers long.

struct Shape {
    rows: u32,
    k: u32,
    n: u32,
    first_panel: u32,
}

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> r: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own: u32) {
    let s = params.shape;
    if (id.x - own) * 4u >= s.rows {
        return;
    }
    // Lanes past the end compute what the last one does, and store nothing.
    let first = min(id.x * 4u, s.rows - 1u);
    let lane = own & 7u;
    let column = (s.first_panel + id.y) * 16u;
    let w_panel = params.call.w_at + id.y * panel_fours(s.k);
    var x_at: array<u32, 4>;
    var y_at: array<u32, 4>;
    var sums: array<array<vec4<f32>, 4>, 4>;
    for (var p = 0u; p < 4u; p++) {
        let row = min(first + p, s.rows - 1u);
        x_at[p] = params.call.x_at + row * s.k / 4u;
        y_at[p] = row * s.n + column;
        for (var j = 0u; j < 4u; j++) {
            sums[p][j] = bias(w_panel, j);
            for (var i = 0u; i < 4u; i++) {
                let at = j * 4u + i;
                if column + at < s.n {
                    if params.call.residual == 1u {
                        sums[p][j][i] += r[params.call.r_at + y_at[p] + at];
                    } else if params.call.residual == 2u {
                        sums[p][j][i] += y[params.call.y_at + y_at[p] + at];
                    }
                }
            }
        }
    }
    let w_first = steps_at(w_panel);
    var k = 0u;
    loop {
        let x0 = x[x_at[0] + k];
        let x1 = x[x_at[1] + k];
        let x2 = x[x_at[2] + k];
        let x3 = x[x_at[3] + k];
        // Of four steps.
        let w_low = w[w_first + k * 16u + lane];
        let w_high = w[w_first + k * 16u + 8u + lane];
        let w00 = subgroupBroadcast(w_low, 0u);
        let w10 = subgroupBroadcast(w_low, 4u);
        let w20 = subgroupBroadcast(w_high, 0u);
        let w30 = subgroupBroadcast(w_high, 4u);
        sums[0][0] += x0.x * w00; sums[0][0] += x0.y * w10; sums[0][0] += x0.z * w20; sums[0][0] += x0.w * w30;
        sums[1][0] += x1.x * w00; sums[1][0] += x1.y * w10; sums[1][0] += x1.z * w20; sums[1][0] += x1.w * w30;
        sums[2][0] += x2.x * w00; sums[2][0] += x2.y * w10; sums[2][0] += x2.z * w20; sums[2][0] += x2.w * w30;
        sums[3][0] += x3.x * w00; sums[3][0] += x3.y * w10; sums[3][0] += x3.z * w20; sums[3][0] += x3.w * w30;
        let w01 = subgroupBroadcast(w_low, 1u);
        let w11 = subgroupBroadcast(w_low, 5u);
        let w21 = subgroupBroadcast(w_high, 1u);
        let w31 = subgroupBroadcast(w_high, 5u);
        sums[0][1] += x0.x * w01; sums[0][1] += x0.y * w11; sums[0][1] += x0.z * w21; sums[0][1] += x0.w * w31;
        sums[1][1] += x1.x * w01; sums[1][1] += x1.y * w11; sums[1][1] += x1.z * w21; sums[1][1] += x1.w * w31;
        sums[2][1] += x2.x * w01; sums[2][1] += x2.y * w11; sums[2][1] += x2.z * w21; sums[2][1] += x2.w * w31;
        sums[3][1] += x3.x * w01; sums[3][1] += x3.y * w11; sums[3][1] += x3.z * w21; sums[3][1] += x3.w * w31;
        let w02 = subgroupBroadcast(w_low, 2u);
        let w12 = subgroupBroadcast(w_low, 6u);
        let w22 = subgroupBroadcast(w_high, 2u);
        let w32 = subgroupBroadcast(w_high, 6u);
        sums[0][2] += x0.x * w02; sums[0][2] += x0.y * w12; sums[0][2] += x0.z * w22; sums[0][2] += x0.w * w32;
        sums[1][2] += x1.x * w02; sums[1][2] += x1.y * w12; sums[1][2] += x1.z * w22; sums[1][2] += x1.w * w32;
        sums[2][2] += x2.x * w02; sums[2][2] += x2.y * w12; sums[2][2] += x2.z * w22; sums[2][2] += x2.w * w32;
        sums[3][2] += x3.x * w02; sums[3][2] += x3.y * w12; sums[3][2] += x3.z * w22; sums[3][2] += x3.w * w32;
        let w03 = subgroupBroadcast(w_low, 3u);
        let w13 = subgroupBroadcast(w_low, 7u);
        let w23 = subgroupBroadcast(w_high, 3u);
        let w33 = subgroupBroadcast(w_high, 7u);
        sums[0][3] += x0.x * w03; sums[0][3] += x0.y * w13; sums[0][3] += x0.z * w23; sums[0][3] += x0.w * w33;
        sums[1][3] += x1.x * w03; sums[1][3] += x1.y * w13; sums[1][3] += x1.z * w23; sums[1][3] += x1.w * w33;
        sums[2][3] += x2.x * w03; sums[2][3] += x2.y * w13; sums[2][3] += x2.z * w23; sums[2][3] += x2.w * w33;
        sums[3][3] += x3.x * w03; sums[3][3] += x3.y * w13; sums[3][3] += x3.z * w23; sums[3][3] += x3.w * w33;
        continuing {
            k++;
            break if k >= s.k / 4u;
        }
    }
    if id.x * 4u >= s.rows {
        return;
    }
    for (var p = 0u; p < min(4u, s.rows - first); p++) {
        for (var j = 0u; j < 4u; j++) {
            let result = bound(sums[p][j]);
            for (var i = 0u; i < 4u; i++) {
                let at = j * 4u + i;
                if column + at < s.n {
                    y[params.call.y_at + y_at[p] + at] = result[i];
                }
            }
        }
    }
    if is_bound() {
        return;
    }
    let columns = min(16u, s.n - column);
    for (var i = 0u; i < min(4u, s.rows - first) * columns; i++) {
        let at = params.call.y_at + (first + i / columns) * s.n + column + i % columns;
        y[at] = activate(vec4<f32>(y[at])).x;
    }
}
