// softmax(scale * q kT + mask) v, by strides. One workgroup for each query: 64 keys at a time, whose scores stay in it.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read> r: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> m: array<f32>;

var<workgroup> parts: array<f32, 64>;
var<workgroup> weights: array<f32, 64>;

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
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let s = params.shape;
    let row = group.x;
    let head = group.y;
    let batch = group.z;
    let shared_head = head / s.shared_by;
    let q_first = params.call.x_at + s.q_first + batch * s.q_batch + head * s.q_head + row * s.q_row;
    let k_first = params.call.w_at + s.k_first + batch * s.k_batch + shared_head * s.k_head;
    let v_first = params.call.r_at + s.v_first + batch * s.v_batch + shared_head * s.v_head;
    let m_first = batch * s.mask_batch + head * s.mask_head + row * s.mask_row;
    var sums = array<f32, 4>(0.0, 0.0, 0.0, 0.0);
    var most = LOWEST;
    var total = 0.0;
    for (var first = 0u; first < s.keys; first += 64u) {
        let key = first + local;
        var score = LOWEST;
        if key < s.keys {
            var product = 0.0;
            let k_at = k_first + key * s.k_row;
            for (var d = 0u; d < s.depth; d++) {
                product += x[q_first + d * s.q_depth] * w[k_at + d * s.k_depth];
            }
            score = product * s.scale;
            if s.has_mask == 1u {
                score += m[params.call.m_at + m_first + key * s.mask_col];
            }
        }
        var is_seen = key < s.keys && ((s.rules & CAUSAL) == 0u || key <= row);
        if is_seen && s.has_mask == 2u {
            let at = m_first + key * s.mask_col;
            let word = bitcast<u32>(m[params.call.m_at + at / 4u]);
            is_seen = ((word >> (at % 4u * 8u)) & 255u) != 0u;
        }
        let next = max(most, most_of_all(local, select(LOWEST, score, is_seen)));
        let weight = select(0.0, exp(score - next), is_seen);
        weights[local] = weight;
        let faded = exp(most - next);
        total = total * faded + sum_of_all(local, weight);
        most = next;
        let count = min(64u, s.keys - first);
        for (var part = 0u; part < 4u; part++) {
            let d = part * 64u + local;
            if d < s.value_depth {
                var sum = sums[part] * faded;
                var v_at = v_first + first * s.v_row + d * s.v_depth;
                for (var i = 0u; i < count; i++) {
                    sum += weights[i] * r[v_at];
                    v_at += s.v_row;
                }
                sums[part] = sum;
            }
        }
    }
    let y_first = params.call.y_at + batch * s.y_batch + head * s.y_head + row * s.y_row;
    for (var part = 0u; part < 4u; part++) {
        let d = part * 64u + local;
        if d < s.value_depth {
            let has_weights = total > 0.0 || (s.rules & NAN_IS_ZERO) == 0u;
            y[y_first + d * s.y_depth] = select(0.0, sums[part] / total, has_weights);
        }
    }
}
