// Panels of integers in blocks along k: 16 biases, then of each block 16 scales, 16 zero points, and 16 integers of each step. All is
// counted in words, and steps by their number.

@group(0) @binding(2) var<storage, read> w: array<u32>;

// The panel in hand.
var<private> panel_at: u32;

fn has_four_bits() -> bool {
    return (params.call.format & 1u) != 0u;
}

fn has_half_scales() -> bool {
    return (params.call.format & 2u) != 0u;
}

fn block_steps() -> u32 {
    return params.call.format >> 8u;
}

fn scale_words() -> u32 {
    return select(16u, 8u, has_half_scales());
}

// Scales and zero points.
fn head_words() -> u32 {
    return scale_words() + 4u;
}

fn step_words() -> u32 {
    return select(4u, 2u, has_four_bits());
}

fn panel_fours(steps: u32) -> u32 {
    let blocks = (steps + block_steps() - 1u) / block_steps();
    return 16u + blocks * head_words() + steps * step_words();
}

fn step_fours() -> u32 {
    return 1u;
}

fn steps_at(panel: u32) -> u32 {
    return 0u;
}

fn begin_panel(panel: u32) {
    panel_at = panel;
}

fn floats_at(at: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(w[at], w[at + 1u], w[at + 2u], w[at + 3u]));
}

fn signed_bytes(word: u32) -> vec4<f32> {
    let bytes = vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u);
    return vec4<f32>(bitcast<vec4<i32>>(bytes) >> vec4<u32>(24u));
}

fn bias(panel: u32, j: u32) -> vec4<f32> {
    return floats_at(panel + j * 4u);
}

fn weight(step: u32, j: u32) -> vec4<f32> {
    let block = panel_at + 16u + step / block_steps() * (head_words() + block_steps() * step_words());
    var scales: vec4<f32>;
    if has_half_scales() {
        scales = vec4<f32>(unpack2x16float(w[block + j * 2u]), unpack2x16float(w[block + j * 2u + 1u]));
    } else {
        scales = floats_at(block + j * 4u);
    }
    let zeros = signed_bytes(w[block + scale_words() + j]);
    let at = block + head_words() + step % block_steps() * step_words();
    var stored: vec4<f32>;
    if has_four_bits() {
        // The first eight in the low halves of bytes, the others in the high ones.
        let word = w[at + j % 2u] >> select(0u, 4u, j >= 2u);
        stored = vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u));
    } else {
        stored = signed_bytes(w[at + j]);
    }
    return (stored - zeros) * scales;
}

// Of a panel's step, for those that have many panels in hand.
fn tile_weight(panel: u32, step: u32, j: u32) -> vec4<f32> {
    panel_at = panel;
    return weight(step, j);
}
