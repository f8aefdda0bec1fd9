// Panels of 16 or 8 bits: 16 biases, perhaps as many scales and zero points, then 16 weights of each step.

@group(0) @binding(2) var<storage, read> w: array<vec4<u32>>;

// Of the panel in hand.
var<private> scales: array<vec4<f32>, 4>;
var<private> zeros: array<vec4<f32>, 4>;

// 1: half floats, 2: bfloat16, 3: signed bytes
fn element() -> u32 {
    return params.call.format % 4u;
}

// How many fours of f32 come before the steps.
fn head_fours() -> u32 {
    return (1u + params.call.format / 4u) * 4u;
}

fn panel_fours(steps: u32) -> u32 {
    return head_fours() + steps * step_fours();
}

fn step_fours() -> u32 {
    return select(2u, 1u, element() == 3u);
}

fn steps_at(panel: u32) -> u32 {
    return panel + head_fours();
}

fn begin_panel(panel: u32) {
    let kinds = params.call.format / 4u;
    for (var j = 0u; j < 4u; j++) {
        scales[j] = vec4<f32>(1.0);
        zeros[j] = vec4<f32>(0.0);
        if kinds >= 1u {
            scales[j] = bitcast<vec4<f32>>(w[panel + 4u + j]);
        }
        if kinds >= 2u {
            zeros[j] = bitcast<vec4<f32>>(w[panel + 8u + j]);
        }
    }
}

fn bias(panel: u32, j: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(w[panel + j]);
}

fn stored_at(at: u32, j: u32) -> vec4<f32> {
    if element() == 3u {
        let bytes = vec4<u32>(w[at][j]) << vec4<u32>(24u, 16u, 8u, 0u);
        return vec4<f32>(bitcast<vec4<i32>>(bytes) >> vec4<u32>(24u));
    }
    let all = w[at + j / 2u];
    let words = select(all.xy, all.zw, j % 2u == 1u);
    if element() == 1u {
        return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
    }
    let bits = vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u);
    return bitcast<vec4<f32>>(bits);
}

fn weight(at: u32, j: u32) -> vec4<f32> {
    return (stored_at(at, j) - zeros[j]) * scales[j];
}

// Of a panel's step, for those that have many panels in hand.
fn tile_weight(panel: u32, step: u32, j: u32) -> vec4<f32> {
    let kinds = params.call.format / 4u;
    var found = stored_at(steps_at(panel) + step * step_fours(), j);
    if kinds >= 2u {
        found -= bitcast<vec4<f32>>(w[panel + 8u + j]);
    }
    if kinds >= 1u {
        found *= bitcast<vec4<f32>>(w[panel + 4u + j]);
    }
    return found;
}
