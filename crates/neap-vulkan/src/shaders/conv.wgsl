// Convolution over panels, blocked in and out. One invocation: the 16 channels of a panel at four neighbouring outputs.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

var<private> sums: array<array<vec4<f32>, 4>, 4>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    let positions = s.out_h * s.out_w;
    let first = id.x * 4u;
    if first >= positions {
        return;
    }
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
    begin_panel(w_panel);
    let y_first = ((image * planes_out + panel) * positions + first) * 4u;

    // Where each output's window begins; one past the last is computed like the last and not stored.
    var rows: array<i32, 4>;
    var cols: array<i32, 4>;
    for (var p = 0u; p < 4u; p++) {
        let at = min(first + p, positions - 1u);
        rows[p] = i32(at / s.out_w * s.stride_h) - i32(s.pad_h);
        cols[p] = i32(at % s.out_w * s.stride_w) - i32(s.pad_w);
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
    let step = step_fours();
    var block = 0u;
    for (var done = 0u; done < channels; done += 16u) {
        let width = min(16u, channels - done);
        let x_block = x_first + block * plane;
        for (var ky = 0u; ky < s.kernel_h; ky++) {
            for (var kx = 0u; kx < s.kernel_w; kx++) {
                var origin: array<u32, 4>;
                var inside: array<f32, 4>;
                for (var p = 0u; p < 4u; p++) {
                    let row = rows[p] + i32(ky * s.dilation_h);
                    let col = cols[p] + i32(kx * s.dilation_w);
                    let is_inside = row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w);
                    origin[p] = x_block + select(0u, u32(row * i32(s.in_w) + col) * 4u, is_inside);
                    inside[p] = select(0.0, 1.0, is_inside);
                }
                var c = 0u;
                for (; c + 4u <= width; c += 4u) {
                    let at = c / 4u;
                    let x0 = select(vec4<f32>(0.0), x[origin[0] + at], inside[0] != 0.0);
                    let x1 = select(vec4<f32>(0.0), x[origin[1] + at], inside[1] != 0.0);
                    let x2 = select(vec4<f32>(0.0), x[origin[2] + at], inside[2] != 0.0);
                    let x3 = select(vec4<f32>(0.0), x[origin[3] + at], inside[3] != 0.0);
                    for (var j = 0u; j < 4u; j++) {
                        let w0 = weight(w_at, j);
                        let w1 = weight(w_at + step, j);
                        let w2 = weight(w_at + 2u * step, j);
                        let w3 = weight(w_at + 3u * step, j);
                        sums[0][j] += x0.x * w0; sums[0][j] += x0.y * w1; sums[0][j] += x0.z * w2; sums[0][j] += x0.w * w3;
                        sums[1][j] += x1.x * w0; sums[1][j] += x1.y * w1; sums[1][j] += x1.z * w2; sums[1][j] += x1.w * w3;
                        sums[2][j] += x2.x * w0; sums[2][j] += x2.y * w1; sums[2][j] += x2.z * w2; sums[2][j] += x2.w * w3;
                        sums[3][j] += x3.x * w0; sums[3][j] += x3.y * w1; sums[3][j] += x3.z * w2; sums[3][j] += x3.w * w3;
                    }
                    w_at += 4u * step;
                }
                for (; c < width; c++) {
                    for (var p = 0u; p < 4u; p++) {
                        let value = select(0.0, x[origin[p] + c / 4u][c % 4u], inside[p] != 0.0);
                        for (var j = 0u; j < 4u; j++) {
                            sums[p][j] += value * weight(w_at, j);
                        }
                    }
                    w_at += step;
                }
            }
        }
        block++;
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
