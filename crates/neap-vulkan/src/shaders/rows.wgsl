// Rows of `k` elements: softmax, its logarithm, layer norm, norm by root mean square. One workgroup for each row.

var<workgroup> parts: array<f32, 64>;

fn sum_of_all(local: u32, own: f32) -> f32 {
    workgroupBarrier();
    parts[local] = own;
    workgroupBarrier();
    for (var apart = 32u; apart > 0u; apart /= 2u) {
        if local < apart {
            parts[local] += parts[local + apart];
        }
        workgroupBarrier();
    }
    return parts[0];
}

fn most_of_all(local: u32, own: f32) -> f32 {
    workgroupBarrier();
    parts[local] = own;
    workgroupBarrier();
    for (var apart = 32u; apart > 0u; apart /= 2u) {
        if local < apart {
            parts[local] = max(parts[local], parts[local + apart]);
        }
        workgroupBarrier();
    }
    return parts[0];
}

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let s = params.shape;
    for (var row = group.x; row < s.rows; row += groups.x) {
        if s.kind == 0u || s.kind == 3u {
            var most = -3.402823466e38;
            for (var i = local; i < s.k; i += 64u) {
                most = max(most, value(place(row, i)));
            }
            most = most_of_all(local, most);
            var sum = 0.0;
            for (var i = local; i < s.k; i += 64u) {
                sum += exp(value(place(row, i)) - most);
            }
            sum = sum_of_all(local, sum);
            for (var i = local; i < s.k; i += 64u) {
                let off = value(place(row, i)) - most;
                y[params.call.y_at + place(row, i)] = select(exp(off) / sum, off - log(sum), s.kind == 3u);
            }
        } else {
            var mean = 0.0;
            if s.kind == 1u {
                var sum = 0.0;
                for (var i = local; i < s.k; i += 64u) {
                    sum += value(place(row, i));
                }
                mean = sum_of_all(local, sum) / f32(s.k);
            }
            var squares = 0.0;
            for (var i = local; i < s.k; i += 64u) {
                let off = value(place(row, i)) - mean;
                squares += off * off;
            }
            let deviation = sqrt(sum_of_all(local, squares) / f32(s.k) + s.epsilon);
            for (var i = local; i < s.k; i += 64u) {
                let scale = scale_of(row, i);
                var result = (value(place(row, i)) - mean) / deviation * w[params.call.w_at + scale];
                if s.has_shift == 1u {
                    result += r[params.call.r_at + scale];
                }
                y[params.call.y_at + place(row, i)] = result;
            }
        }
        workgroupBarrier();
    }
}
