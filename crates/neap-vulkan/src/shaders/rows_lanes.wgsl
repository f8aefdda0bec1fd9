// `rows.wgsl` for drivers that compute on the processor, without barriers: eight invocations for each row, which tell each other
// their sums. Each takes four elements at a time, eight apart.

fn sum_of_all(own: vec4<f32>) -> f32 {
    let sum = (own.x + own.y) + (own.z + own.w);
    let low = subgroupBroadcast(sum, 0u) + subgroupBroadcast(sum, 1u) + subgroupBroadcast(sum, 2u) + subgroupBroadcast(sum, 3u);
    return low + subgroupBroadcast(sum, 4u) + subgroupBroadcast(sum, 5u) + subgroupBroadcast(sum, 6u) + subgroupBroadcast(sum, 7u);
}

fn most_of_all(own: vec4<f32>) -> f32 {
    let most = max(max(own.x, own.y), max(own.z, own.w));
    let low = max(max(subgroupBroadcast(most, 0u), subgroupBroadcast(most, 1u)), max(subgroupBroadcast(most, 2u), subgroupBroadcast(most, 3u)));
    let high = max(max(subgroupBroadcast(most, 4u), subgroupBroadcast(most, 5u)), max(subgroupBroadcast(most, 6u), subgroupBroadcast(most, 7u)));
    return max(low, high);
}

// Where elements are; past the end it is the last.
fn elements(i: u32) -> vec4<u32> {
    return min(vec4<u32>(i, i + 8u, i + 16u, i + 24u), vec4<u32>(params.shape.k - 1u));
}

fn is_there(i: u32) -> vec4<bool> {
    return vec4<u32>(i, i + 8u, i + 16u, i + 24u) < vec4<u32>(params.shape.k);
}

fn places_of(row: u32, i: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(place(row, i.x), place(row, i.y), place(row, i.z), place(row, i.w));
}

fn values(at: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(value(at.x), value(at.y), value(at.z), value(at.w));
}

fn store(i: u32, at: vec4<u32>, results: vec4<f32>) {
    let y_at = params.call.y_at + at;
    y[y_at.x] = results.x;
    if i + 8u < params.shape.k {
        y[y_at.y] = results.y;
    }
    if i + 16u < params.shape.k {
        y[y_at.z] = results.z;
    }
    if i + 24u < params.shape.k {
        y[y_at.w] = results.w;
    }
}

fn scaled(row: u32, i: vec4<u32>, value: vec4<f32>) -> vec4<f32> {
    let s = params.shape;
    let at = vec4<u32>(scale_of(row, i.x), scale_of(row, i.y), scale_of(row, i.z), scale_of(row, i.w));
    let by = params.call.w_at + at;
    var result = value * vec4<f32>(w[by.x], w[by.y], w[by.z], w[by.w]);
    if s.has_shift == 1u {
        let plus = params.call.r_at + at;
        result += vec4<f32>(r[plus.x], r[plus.y], r[plus.z], r[plus.w]);
    }
    return result;
}

@compute @workgroup_size(8)
fn main(
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let s = params.shape;
    let is_norm = s.kind == 1u || s.kind == 2u;
    for (var row = group.x; row < s.rows; row += groups.x) {
        // What is taken off: the most of a softmax, the mean of a layer norm.
        var off = 0.0;
        if s.kind != 2u {
            var most = vec4<f32>(-3.402823466e38);
            var sum = vec4<f32>(0.0);
            var done = 0u;
            loop {
                let found = values(places_of(row, elements(done + lane)));
                most = max(most, found);
                sum += select(vec4<f32>(0.0), found, is_there(done + lane));
                continuing {
                    done += 32u;
                    break if done >= s.k;
                }
            }
            off = select(most_of_all(most), sum_of_all(sum) / f32(s.k), is_norm);
        }
        var sum = vec4<f32>(0.0);
        var done = 0u;
        loop {
            let found = values(places_of(row, elements(done + lane))) - off;
            sum += select(vec4<f32>(0.0), select(exp(found), found * found, is_norm), is_there(done + lane));
            continuing {
                done += 32u;
                break if done >= s.k;
            }
        }
        let total = sum_of_all(sum);
        let deviation = sqrt(total / f32(s.k) + s.epsilon);
        let logarithm = log(total);
        done = 0u;
        loop {
            let i = done + lane;
            let found = elements(i);
            let at = places_of(row, found);
            let value = values(at) - off;
            var result = select(exp(value) / total, value - logarithm, s.kind == 3u);
            if is_norm {
                result = scaled(row, found, value / deviation);
            }
            if i < s.k {
                store(i, at, result);
            }
            continuing {
                done += 32u;
                break if done >= s.k;
            }
        }
    }
}
