// `first.wgsl` for drivers that compute on the processor; see `conv_lanes.wgsl`. One invocation: the 16 channels of a panel at
// four neighbouring outputs.

@group(0) @binding(1) var<storage, read> x: array<f32>;
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
    let plane = s.in_h * s.in_w;
    let x_first = params.call.x_at + id.z * s.c_in * plane;
    let planes_out = (s.c_out + 15u) / 16u;
    let y_first = ((id.z * planes_out + panel) * positions + first) * 4u;
    let steps = s.c_in * s.kernel_h * s.kernel_w;
    let w_panel = params.call.w_at + id.y * panel_fours(steps);

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
    for (var ky = 0u; ky < s.kernel_h; ky++) {
        for (var kx = 0u; kx < s.kernel_w; kx++) {
            var origin: array<u32, 4>;
            var inside: array<bool, 4>;
            for (var p = 0u; p < 4u; p++) {
                let row = rows[p] + i32(ky * s.dilation_h);
                let col = cols[p] + i32(kx * s.dilation_w);
                inside[p] = row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w);
                origin[p] = x_first + select(0u, u32(row * i32(s.in_w) + col), inside[p]);
            }
            for (var c = 0u; c < s.c_in; c++) {
                let four = w[w_at + (lane & 3u)];
                let w0 = subgroupBroadcast(four, 0u);
                let w1 = subgroupBroadcast(four, 1u);
                let w2 = subgroupBroadcast(four, 2u);
                let w3 = subgroupBroadcast(four, 3u);
                for (var p = 0u; p < 4u; p++) {
                    let value = select(0.0, x[origin[p] + c * plane], inside[p]);
                    sums[p][0] += value * w0;
                    sums[p][1] += value * w1;
                    sums[p][2] += value * w2;
                    sums[p][3] += value * w3;
                }
                w_at += 4u;
            }
        }
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
