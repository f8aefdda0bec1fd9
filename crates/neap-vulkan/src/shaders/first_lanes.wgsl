// `first.wgsl` for drivers that compute on the processor; see `conv_lanes.wgsl`. One invocation: the channels of two panels at
// four neighbouring outputs.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

// By place, then by fours of channels of both panels.
var<private> sums: array<array<vec4<f32>, 8>, 4>;

fn add(j: u32, x: vec4<f32>, w: vec4<f32>) {
    sums[0][j] += x.x * w;
    sums[1][j] += x.y * w;
    sums[2][j] += x.z * w;
    sums[3][j] += x.w * w;
}

fn finish(at: u32, result: vec4<f32>) {
    var sum = result;
    if MORE {
        if params.call.residual == 1u {
            sum += r[params.call.r_at + at];
        } else if params.call.residual == 2u {
            sum += y[params.call.y_at + at];
        }
    }
    y[params.call.y_at + at] = bound(sum);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own: u32) {
    let s = params.shape;
    let positions = s.out_h * s.out_w;
    if (id.x - own) * 4u >= positions {
        return;
    }
    // Lanes past the end compute what the last one does, and store nothing.
    let first = min(id.x * 4u, positions - 1u);
    let count = min(4u, positions - first);
    let lane = own & 7u;
    // Where there is but one panel, it is computed twice, and stored once.
    let own_panel = id.y * s.panels_each;
    let panel = s.first_panel + own_panel;
    let panels = min(s.panels_each, s.kind - own_panel);
    let plane = s.in_h * s.in_w;
    let x_first = params.call.x_at + id.z * s.c_in * plane;
    let planes_out = (s.c_out + 15u) / 16u;
    let y_first = ((id.z * planes_out + panel) * positions + first) * 4u;
    let steps = s.c_in * s.kernel_h * s.kernel_w;
    let w_first = params.call.w_at + own_panel * panel_fours(steps);
    let w_next = w_first + select(0u, panel_fours(steps), panels > 1u);
    for (var j = 0u; j < 4u; j++) {
        let low = bias(w_first, j);
        let high = bias(w_next, j);
        for (var p = 0u; p < 4u; p++) {
            sums[p][j] = low;
            sums[p][4u + j] = high;
        }
    }

    var rows: array<i32, 4>;
    var cols: array<i32, 4>;
    var row = first / s.out_w;
    var col = first - row * s.out_w;
    for (var p = 0u; p < 4u; p++) {
        rows[p] = i32(row * s.stride_h) - i32(s.pad_h);
        cols[p] = i32(col * s.stride_w) - i32(s.pad_w);
        let goes_on = p + 1u < count;
        let wraps = col + 1u == s.out_w;
        row = select(row, row + 1u, goes_on && wraps);
        col = select(col, select(col + 1u, 0u, wraps), goes_on);
    }
    // Lanes load a step's weights of one panel or of the other.
    var w_at = steps_at(select(w_first, w_next, lane >= 4u)) + (lane & 3u);
    var ky = 0u;
    loop {
        var kx = 0u;
        loop {
            var origin: vec4<u32>;
            var inside: vec4<bool>;
            for (var p = 0u; p < 4u; p++) {
                let row = rows[p] + i32(ky * s.dilation_h);
                let col = cols[p] + i32(kx * s.dilation_w);
                inside[p] = row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w);
                origin[p] = x_first + select(0u, u32(row * i32(s.in_w) + col), inside[p]);
            }
            var c = 0u;
            loop {
                let loaded = vec4<f32>(x[origin.x], x[origin.y], x[origin.z], x[origin.w]);
                let values = select(vec4<f32>(0.0), loaded, inside);
                let four = w[w_at];
                add(0u, values, subgroupBroadcast(four, 0u));
                add(1u, values, subgroupBroadcast(four, 1u));
                add(2u, values, subgroupBroadcast(four, 2u));
                add(3u, values, subgroupBroadcast(four, 3u));
                add(4u, values, subgroupBroadcast(four, 4u));
                add(5u, values, subgroupBroadcast(four, 5u));
                add(6u, values, subgroupBroadcast(four, 6u));
                add(7u, values, subgroupBroadcast(four, 7u));
                continuing {
                    origin += vec4<u32>(plane);
                    w_at += 4u;
                    c++;
                    break if c >= s.c_in;
                }
            }
            continuing {
                kx++;
                break if kx >= s.kernel_w;
            }
        }
        continuing {
            ky++;
            break if ky >= s.kernel_h;
        }
    }
    if id.x * 4u >= positions {
        return;
    }
    for (var p = 0u; p < 4u; p++) {
        for (var j = 0u; j < 4u; j++) {
            if p < count {
                finish(y_first + p * 4u + j, sums[p][j]);
            }
        }
    }
    if panels > 1u {
        for (var p = 0u; p < 4u; p++) {
            for (var j = 0u; j < 4u; j++) {
                if p < count {
                    finish(y_first + (positions + p) * 4u + j, sums[p][4u + j]);
                }
            }
        }
    }
    if !MORE || is_bound() {
        return;
    }
    for (var q = 0u; q < panels; q++) {
        for (var i = 0u; i < count * 4u; i++) {
            let at = params.call.y_at + y_first + q * positions * 4u + i;
            y[at] = activate(y[at]);
        }
    }
}
