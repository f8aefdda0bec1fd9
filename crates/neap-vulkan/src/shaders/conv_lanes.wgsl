// `conv.wgsl` for drivers that compute on the processor. They load from memory lane by lane, so there each lane loads another
// part of what all need, and tells the others.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

var<private> sums: array<array<vec4<f32>, 4>, 4>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own: u32) {
    let s = params.shape;
    let positions = s.out_h * s.out_w;
    if (id.x - own) * 4u >= positions {
        return;
    }
    // Lanes past the end compute what the last one does, and store nothing.
    let first = min(id.x * 4u, positions - 1u);
    let lane = own & 7u;
    let panel = s.first_panel + id.y;
    let image = id.z;
    let taps = s.kernel_h * s.kernel_w;
    let channels = s.c_in / s.groups;
    let group = panel * 16u / (s.c_out / s.groups);
    let planes_in = (s.c_in + 15u) / 16u;
    let planes_out = (s.c_out + 15u) / 16u;
    let plane = s.in_h * s.in_w * 4u;
    let x_first = params.call.x_at + (image * planes_in + group * channels / 16u) * plane;
    let w_panel = params.call.w_at + id.y * panel_fours(channels * taps);
    let y_first = ((image * planes_out + panel) * positions + first) * 4u;

    // Where each output's window begins; one past the last is computed like the last and not stored.
    var rows: array<i32, 4>;
    var cols: array<i32, 4>;
    var row = first / s.out_w;
    var col = first - row * s.out_w;
    for (var p = 0u; p < 4u; p++) {
        rows[p] = i32(row * s.stride_h) - i32(s.pad_h);
        cols[p] = i32(col * s.stride_w) - i32(s.pad_w);
        let goes_on = first + p + 1u < positions;
        let wraps = col + 1u == s.out_w;
        row = select(row, row + 1u, goes_on && wraps);
        col = select(col, select(col + 1u, 0u, wraps), goes_on);
        for (var j = 0u; j < 4u; j++) {
            var start = bias(w_panel, j);
            let origin = y_first + min(p, positions - 1u - first) * 4u + j;
            if params.call.residual == 1u {
                start += r[params.call.r_at + origin];
            } else if params.call.residual == 2u {
                start += y[params.call.y_at + origin];
            }
            sums[p][j] = start;
        }
    }
    var w_at = steps_at(w_panel);
    var block = 0u;
    for (var done = 0u; done < channels; done += 16u) {
        let width = min(16u, channels - done);
        let x_block = x_first + block * plane;
        for (var ky = 0u; ky < s.kernel_h; ky++) {
            for (var kx = 0u; kx < s.kernel_w; kx++) {
                var origin: array<u32, 4>;
                var inside: array<bool, 4>;
                for (var p = 0u; p < 4u; p++) {
                    let row = rows[p] + i32(ky * s.dilation_h);
                    let col = cols[p] + i32(kx * s.dilation_w);
                    inside[p] = row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w);
                    origin[p] = x_block + select(0u, u32(row * i32(s.in_w) + col) * 4u, inside[p]);
                }
                var c = 0u;
                for (; c + 4u <= width; c += 4u) {
                    let at = c / 4u;
                    let x0 = select(vec4<f32>(0.0), x[origin[0] + at], inside[0]);
                    let x1 = select(vec4<f32>(0.0), x[origin[1] + at], inside[1]);
                    let x2 = select(vec4<f32>(0.0), x[origin[2] + at], inside[2]);
                    let x3 = select(vec4<f32>(0.0), x[origin[3] + at], inside[3]);
                    // Of four steps.
                    let w_low = w[w_at + lane];
                    let w_high = w[w_at + 8u + lane];
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
                    w_at += 16u;
                }
                for (; c < width; c++) {
                    for (var p = 0u; p < 4u; p++) {
                        let value = select(0.0, x[origin[p] + c / 4u][c % 4u], inside[p]);
                        for (var j = 0u; j < 4u; j++) {
                            sums[p][j] += value * w[w_at + j];
                        }
                    }
                    w_at += 4u;
                }
            }
        }
        block++;
    }
    if id.x * 4u >= positions {
        return;
    }
    for (var p = 0u; p < min(4u, positions - first); p++) {
        for (var j = 0u; j < 4u; j++) {
            y[params.call.y_at + y_first + p * 4u + j] = bound(sums[p][j]);
        }
    }
    if is_bound() {
        return;
    }
    for (var i = 0u; i < min(4u, positions - first) * 4u; i++) {
        let at = params.call.y_at + y_first + i;
        y[at] = activate(y[at]);
    }
}
