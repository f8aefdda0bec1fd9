// `attention.wgsl` for drivers that compute on the processor, without barriers; see `conv_lanes.wgsl`. One invocation: four
// queries, eight apart, and 32 keys at a time, of which each lane loads every eighth. What a query has so far stays in the
// result's place. Heads begin at multiples of four numbers, and the numbers of a row lie one after the other. With `MORE` there is a mask.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> m: array<f32>;

// By query, then by fours of keys: scores, then weights.
var<private> scores: array<array<vec4<f32>, 8>, 4>;

// Four numbers of four queries and of eight keys, one of each lane.
fn compare(j: u32, q0: vec4<f32>, q1: vec4<f32>, q2: vec4<f32>, q3: vec4<f32>, keys: vec4<f32>) {
    let a = subgroupBroadcast(keys, 0u);
    let b = subgroupBroadcast(keys, 1u);
    let c = subgroupBroadcast(keys, 2u);
    let d = subgroupBroadcast(keys, 3u);
    scores[0][j] += vec4<f32>(dot(q0, a), dot(q0, b), dot(q0, c), dot(q0, d));
    scores[1][j] += vec4<f32>(dot(q1, a), dot(q1, b), dot(q1, c), dot(q1, d));
    scores[2][j] += vec4<f32>(dot(q2, a), dot(q2, b), dot(q2, c), dot(q2, d));
    scores[3][j] += vec4<f32>(dot(q3, a), dot(q3, b), dot(q3, c), dot(q3, d));
    let e = subgroupBroadcast(keys, 4u);
    let f = subgroupBroadcast(keys, 5u);
    let g = subgroupBroadcast(keys, 6u);
    let h = subgroupBroadcast(keys, 7u);
    scores[0][j + 1u] += vec4<f32>(dot(q0, e), dot(q0, f), dot(q0, g), dot(q0, h));
    scores[1][j + 1u] += vec4<f32>(dot(q1, e), dot(q1, f), dot(q1, g), dot(q1, h));
    scores[2][j + 1u] += vec4<f32>(dot(q2, e), dot(q2, f), dot(q2, g), dot(q2, h));
    scores[3][j + 1u] += vec4<f32>(dot(q3, e), dot(q3, f), dot(q3, g), dot(q3, h));
}

// What a mask adds: to a key that it hides, what is less than any score.
fn mask(at: u32, hidden: f32) -> f32 {
    if !MORE {
        return 0.0;
    }
    let in_bytes = params.shape.has_mask == 2u;
    let word = m[params.call.m_at + select(at, at / 4u, in_bytes)];
    let byte = (bitcast<u32>(word) >> (at % 4u * 8u)) & 255u;
    return select(word, select(hidden, 0.0, byte != 0u), in_bytes);
}

// Of four keys of a query. Those behind its last one are hidden.
fn score(p: u32, j: u32, key: u32, last: u32, mask_at: u32, hidden: f32) {
    let keys = vec4<u32>(key, key + 1u, key + 2u, key + 3u);
    var score = scores[p][j] * params.shape.scale;
    if MORE {
        let at = vec4<u32>(mask_at) + min(keys, vec4<u32>(params.shape.keys - 1u)) * params.shape.mask_col;
        score += vec4<f32>(mask(at.x, hidden), mask(at.y, hidden), mask(at.z, hidden), mask(at.w, hidden));
    }
    scores[p][j] = select(vec4<f32>(hidden), score, keys <= vec4<u32>(last));
}

struct Query {
    most: f32,
    total: f32,
    // What its result so far is worth beside the next keys.
    faded: f32,
}

// Makes weights of scores: see `score`.
fn weigh(p: u32, first: u32, row: u32, query: Query, hidden: f32, m_first: u32) -> Query {
    let s = params.shape;
    let last = select(s.keys - 1u, min(s.keys - 1u, row), (s.rules & CAUSAL) != 0u);
    let mask_at = m_first + row * s.mask_row;
    score(p, 0u, first, last, mask_at, hidden);
    score(p, 1u, first + 4u, last, mask_at, hidden);
    score(p, 2u, first + 8u, last, mask_at, hidden);
    score(p, 3u, first + 12u, last, mask_at, hidden);
    score(p, 4u, first + 16u, last, mask_at, hidden);
    score(p, 5u, first + 20u, last, mask_at, hidden);
    score(p, 6u, first + 24u, last, mask_at, hidden);
    score(p, 7u, first + 28u, last, mask_at, hidden);
    let low = max(max(scores[p][0], scores[p][1]), max(scores[p][2], scores[p][3]));
    let high = max(max(scores[p][4], scores[p][5]), max(scores[p][6], scores[p][7]));
    let all = max(low, high);
    let most = max(query.most, max(max(all.x, all.y), max(all.z, all.w)));
    let a = weight(p, 0u, most) + weight(p, 1u, most) + weight(p, 2u, most) + weight(p, 3u, most);
    let b = weight(p, 4u, most) + weight(p, 5u, most) + weight(p, 6u, most) + weight(p, 7u, most);
    let sum = a + b;
    let faded = exp(query.most - most);
    return Query(most, query.total * faded + ((sum.x + sum.y) + (sum.z + sum.w)), faded);
}

fn weight(p: u32, j: u32, most: f32) -> vec4<f32> {
    let found = select(exp(scores[p][j] - most), vec4<f32>(0.0), scores[p][j] < vec4<f32>(LOWEST));
    scores[p][j] = found;
    return found;
}

// Four numbers of the values of eight keys, one of each lane.
fn add(p: u32, j: u32, sum: vec4<f32>, values: vec4<f32>) -> vec4<f32> {
    let low = scores[p][j];
    let high = scores[p][j + 1u];
    let half = sum + low.x * subgroupBroadcast(values, 0u) + low.y * subgroupBroadcast(values, 1u) + low.z * subgroupBroadcast(values, 2u) + low.w * subgroupBroadcast(values, 3u);
    return half + high.x * subgroupBroadcast(values, 4u) + high.y * subgroupBroadcast(values, 5u) + high.z * subgroupBroadcast(values, 6u) + high.w * subgroupBroadcast(values, 7u);
}

fn add_all(p: u32, sum: vec4<f32>, v0: vec4<f32>, v1: vec4<f32>, v2: vec4<f32>, v3: vec4<f32>) -> vec4<f32> {
    return add(p, 6u, add(p, 4u, add(p, 2u, add(p, 0u, sum, v0), v1), v2), v3);
}

// What its weights are divided by, as a factor.
fn share(query: Query) -> f32 {
    let has_weights = query.total > 0.0 || (params.shape.rules & NAN_IS_ZERO) == 0u;
    return select(0.0, 1.0 / query.total, has_weights);
}

@compute @workgroup_size(8)
fn main(@builtin(subgroup_invocation_id) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let s = params.shape;
    let head = group.y;
    let batch = group.z;
    let shared_head = head / s.shared_by;
    let q_first = params.call.x_at + (s.q_first + batch * s.q_batch + head * s.q_head) / 4u;
    let k_first = params.call.w_at + (s.k_first + batch * s.k_batch + shared_head * s.k_head) / 4u;
    let v_first = params.call.r_at + (s.v_first + batch * s.v_batch + shared_head * s.v_head) / 4u;
    let y_first = params.call.y_at + (batch * s.y_batch + head * s.y_head) / 4u;
    let m_first = batch * s.mask_batch + head * s.mask_head;
    // Below every score, of which none is so small: minus infinity, which has no name here.
    let hidden = bitcast<f32>(0xff800000u | (group.x & 0u));
    var rows: array<u32, 4>;
    var q_at: array<u32, 4>;
    var y_at: array<u32, 4>;
    var query0 = Query(LOWEST, 0.0, 0.0);
    var query1 = query0;
    var query2 = query0;
    var query3 = query0;
    for (var p = 0u; p < 4u; p++) {
        // Those past the end compute what the last one does, and store nothing.
        let row = min(group.x * 32u + p * 8u + lane, s.queries - 1u);
        rows[p] = row;
        q_at[p] = q_first + row * s.q_row / 4u;
        y_at[p] = y_first + row * s.y_row / 4u;
    }
    // Of all queries here.
    let keys = select(s.keys, min(s.keys, group.x * 32u + 32u), (s.rules & CAUSAL) != 0u);
    var first = 0u;
    loop {
        var row: array<u32, 4>;
        for (var g = 0u; g < 4u; g++) {
            row[g] = min(first + g * 8u + lane, s.keys - 1u);
        }
        for (var j = 0u; j < 8u; j++) {
            for (var p = 0u; p < 4u; p++) {
                scores[p][j] = vec4<f32>(0.0);
            }
        }
        var d = 0u;
        loop {
            let q0 = x[q_at[0] + d];
            let q1 = x[q_at[1] + d];
            let q2 = x[q_at[2] + d];
            let q3 = x[q_at[3] + d];
            compare(0u, q0, q1, q2, q3, w[k_first + row[0] * s.k_row / 4u + d]);
            compare(2u, q0, q1, q2, q3, w[k_first + row[1] * s.k_row / 4u + d]);
            compare(4u, q0, q1, q2, q3, w[k_first + row[2] * s.k_row / 4u + d]);
            compare(6u, q0, q1, q2, q3, w[k_first + row[3] * s.k_row / 4u + d]);
            continuing {
                d++;
                break if d >= s.depth / 4u;
            }
        }
        query0 = weigh(0u, first, rows[0], query0, hidden, m_first);
        query1 = weigh(1u, first, rows[1], query1, hidden, m_first);
        query2 = weigh(2u, first, rows[2], query2, hidden, m_first);
        query3 = weigh(3u, first, rows[3], query3, hidden, m_first);
        let is_first = first == 0u;
        let is_last = first + 32u >= keys;
        let f0 = select(1.0, share(query0), is_last);
        let f1 = select(1.0, share(query1), is_last);
        let f2 = select(1.0, share(query2), is_last);
        let f3 = select(1.0, share(query3), is_last);
        d = 0u;
        loop {
            let v0 = r[v_first + row[0] * s.v_row / 4u + d];
            let v1 = r[v_first + row[1] * s.v_row / 4u + d];
            let v2 = r[v_first + row[2] * s.v_row / 4u + d];
            let v3 = r[v_first + row[3] * s.v_row / 4u + d];
            let y0 = select(y[y_at[0] + d] * query0.faded, vec4<f32>(0.0), is_first);
            let y1 = select(y[y_at[1] + d] * query1.faded, vec4<f32>(0.0), is_first);
            let y2 = select(y[y_at[2] + d] * query2.faded, vec4<f32>(0.0), is_first);
            let y3 = select(y[y_at[3] + d] * query3.faded, vec4<f32>(0.0), is_first);
            let r0 = add_all(0u, y0, v0, v1, v2, v3) * f0;
            let r1 = add_all(1u, y1, v0, v1, v2, v3) * f1;
            let r2 = add_all(2u, y2, v0, v1, v2, v3) * f2;
            let r3 = add_all(3u, y3, v0, v1, v2, v3) * f3;
            let base = group.x * 32u + lane;
            if base < s.queries {
                y[y_at[0] + d] = r0;
            }
            if base + 8u < s.queries {
                y[y_at[1] + d] = r1;
            }
            if base + 16u < s.queries {
                y[y_at[2] + d] = r2;
            }
            if base + 24u < s.queries {
                y[y_at[3] + d] = r3;
            }
            continuing {
                d++;
                break if d >= s.value_depth / 4u;
            }
        }
        continuing {
            first += 32u;
            break if first >= keys;
        }
    }
}
