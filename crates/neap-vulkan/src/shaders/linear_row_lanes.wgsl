// `linear_row.wgsl` for drivers that compute on the processor, without barriers; see `conv_lanes.wgsl`. Eight invocations share the
// products of a panel and row among them, and tell each other their sums.

@group(0) @binding(1) var<storage, read> x: array<f32>;

fn total(part: vec4<f32>) -> vec4<f32> {
    let low = subgroupBroadcast(part, 0u) + subgroupBroadcast(part, 1u) + subgroupBroadcast(part, 2u) + subgroupBroadcast(part, 3u);
    return low + subgroupBroadcast(part, 4u) + subgroupBroadcast(part, 5u) + subgroupBroadcast(part, 6u) + subgroupBroadcast(part, 7u);
}

@compute @workgroup_size(8)
fn main(@builtin(subgroup_invocation_id) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let s = params.shape;
    let column = (s.first_panel + group.y) * 16u + (lane & 3u) * 4u;
    let w_panel = params.call.w_at + group.y * panel_fours(s.k);
    let w_first = steps_at(w_panel);
    let x_first = params.call.x_at + group.x * s.k;
    var sums = array<vec4<f32>, 4>();
    var done = 0u;
    loop {
        // Lanes past the end load the last, and count it as nothing.
        let k = min(done + lane, s.k - 1u);
        let value = select(0.0, x[x_first + k], done + lane < s.k);
        let at = w_first + k * 4u;
        sums[0] += value * w[at];
        sums[1] += value * w[at + 1u];
        sums[2] += value * w[at + 2u];
        sums[3] += value * w[at + 3u];
        continuing {
            done += 8u;
            break if done >= s.k;
        }
    }
    let low = select(total(sums[0]), total(sums[1]), (lane & 1u) == 1u);
    let high = select(total(sums[2]), total(sums[3]), (lane & 1u) == 1u);
    let result = bias(w_panel, lane & 3u) + select(low, high, (lane & 2u) == 2u);
    if lane < 4u {
        finish(group.x, column, result);
    }
}
