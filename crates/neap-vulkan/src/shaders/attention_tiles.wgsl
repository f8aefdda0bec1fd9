// `attention.wgsl` by tiles in the memory of a workgroup: 16 queries of a head, and 32 keys at a time, by 256 invocations. Heads begin at
// multiples of four numbers, numbers of a row lie one after the other, and there are at most 128 of them.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> m: array<f32>;

const QUERIES = 16u;
const KEYS = 32u;
// A row is one four longer than it is, so that rows begin in other banks.
const ROW = 33u;

var<workgroup> queries: array<vec4<f32>, 528>;
// Keys, then values.
var<workgroup> others: array<vec4<f32>, 1056>;
// By query: scores, then weights.
var<workgroup> scores: array<f32, 512>;

var<private> is_hidden: bool;

// Of a key that is there. What hides it is told beside.
fn score_of(query: u32, key: u32, m_first: u32) -> f32 {
    let s = params.shape;
    is_hidden = (s.rules & CAUSAL) != 0u && key > query;
    let at = m_first + query * s.mask_row + key * s.mask_col;
    if s.has_mask == 1u {
        return m[params.call.m_at + at];
    }
    if s.has_mask == 2u {
        let word = bitcast<u32>(m[params.call.m_at + at / 4u]);
        is_hidden = is_hidden || ((word >> (at % 4u * 8u)) & 255u) == 0u;
    }
    return 0.0;
}

// Tells the others a score of this invocation's query.
fn tell(query_row: u32, query: u32, place: u32, first: u32, product: f32, m_first: u32) {
    let key = first + place;
    // Minus infinity, which has no name here: below every score that counts.
    var found = bitcast<f32>(0xff800000u | (place & 0u));
    if key < params.shape.keys {
        let added = score_of(query, key, m_first);
        if !is_hidden {
            found = product * params.shape.scale + added;
        }
    }
    scores[query_row * KEYS + place] = found;
}

fn weight_of(score: f32, most: f32) -> f32 {
    return select(exp(score - most), 0.0, score < LOWEST);
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let s = params.shape;
    let head = group.y;
    let batch = group.z;
    let shared_head = head / s.shared_by;
    let first_query = group.x * QUERIES;
    let q_first = params.call.x_at + (s.q_first + batch * s.q_batch + head * s.q_head) / 4u;
    let k_first = params.call.w_at + (s.k_first + batch * s.k_batch + shared_head * s.k_head) / 4u;
    let v_first = params.call.r_at + (s.v_first + batch * s.v_batch + shared_head * s.v_head) / 4u;
    let m_first = batch * s.mask_batch + head * s.mask_head;
    let depth = s.depth / 4u;
    let value_depth = s.value_depth / 4u;
    let query_row = local / 16u;
    let query = min(first_query + query_row, s.queries - 1u);
    let place = local % 16u;

    // Those past the end compute what the last one does, and store nothing.
    for (var at = local; at < QUERIES * depth; at += 256u) {
        let row = min(first_query + at / depth, s.queries - 1u);
        queries[at / depth * ROW + at % depth] = x[q_first + row * (s.q_row / 4u) + at % depth];
    }
    var most = LOWEST;
    var total = 0.0;
    var sum_0 = vec4<f32>(0.0);
    var sum_1 = vec4<f32>(0.0);
    // Of all queries here.
    let keys = select(s.keys, min(s.keys, first_query + QUERIES), (s.rules & CAUSAL) != 0u);
    for (var first = 0u; first < keys; first += KEYS) {
        workgroupBarrier();
        for (var at = local; at < KEYS * depth; at += 256u) {
            let row = min(first + at / depth, s.keys - 1u);
            others[at / depth * ROW + at % depth] = w[k_first + row * (s.k_row / 4u) + at % depth];
        }
        workgroupBarrier();
        var product_0 = 0.0;
        var product_1 = 0.0;
        for (var d = 0u; d < depth; d++) {
            let q = queries[query_row * ROW + d];
            product_0 += dot(q, others[place * ROW + d]);
            product_1 += dot(q, others[(place + 16u) * ROW + d]);
        }
        tell(query_row, query, place, first, product_0, m_first);
        tell(query_row, query, place + 16u, first, product_1, m_first);
        workgroupBarrier();
        for (var at = local; at < KEYS * value_depth; at += 256u) {
            let row = min(first + at / value_depth, s.keys - 1u);
            others[at / value_depth * ROW + at % value_depth] = r[v_first + row * (s.v_row / 4u) + at % value_depth];
        }
        var next = most;
        for (var i = 0u; i < KEYS; i++) {
            next = max(next, scores[query_row * KEYS + i]);
        }
        let faded = exp(most - next);
        most = next;
        total *= faded;
        sum_0 *= faded;
        sum_1 *= faded;
        workgroupBarrier();
        for (var i = 0u; i < KEYS; i++) {
            let weight = weight_of(scores[query_row * KEYS + i], most);
            total += weight;
            sum_0 += weight * others[i * ROW + place];
            sum_1 += weight * others[i * ROW + place + 16u];
        }
    }
    if first_query + query_row >= s.queries {
        return;
    }
    let y_first = params.call.y_at + (batch * s.y_batch + head * s.y_head + query * s.y_row) / 4u;
    let has_weights = total > 0.0 || (s.rules & NAN_IS_ZERO) == 0u;
    if place < value_depth {
        y[y_first + place] = select(vec4<f32>(0.0), sum_0 / total, has_weights);
    }
    if place + 16u < value_depth {
        y[y_first + place + 16u] = select(vec4<f32>(0.0), sum_1 / total, has_weights);
    }
}
