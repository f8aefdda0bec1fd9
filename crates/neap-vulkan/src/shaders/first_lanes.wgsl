// `first.wgsl` for drivers that compute on the processor; see `conv_lanes.wgsl`. One invocation: the channels of two panels at
// four neighbouring outputs.

@group(0) @binding(1) var<storage, read> x: array<f32>;

fn add(j: u32, x: vec4<f32>, w: vec4<f32>) {
    sums[0][j] += x.x * w;
    sums[1][j] += x.y * w;
    sums[2][j] += x.z * w;
    sums[3][j] += x.w * w;
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
    begin_sums(w_first, w_next);
    let begin = windows(first, count);
    // Lanes load a step's weights of one panel or of the other.
    var w_at = steps_at(select(w_first, w_next, lane >= 4u)) + (lane & 3u);
    var ky = 0u;
    loop {
        var kx = 0u;
        loop {
            var origin: vec4<u32>;
            var inside: vec4<bool>;
            for (var p = 0u; p < 4u; p++) {
                let row = begin.rows[p] + i32(ky * s.dilation_h);
                let col = begin.cols[p] + i32(kx * s.dilation_w);
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
    store(y_first, positions, count, panels);
}
