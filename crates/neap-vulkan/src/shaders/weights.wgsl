// Panels of f32: 16 biases, then 16 weights of each step, in fours.

@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;

fn panel_fours(steps: u32) -> u32 {
    return (1u + steps) * 4u;
}

// What a step takes.
fn step_fours() -> u32 {
    return 4u;
}

// Where the steps of a panel begin.
fn steps_at(panel: u32) -> u32 {
    return panel + 4u;
}

fn begin_panel(panel: u32) {}

fn bias(panel: u32, j: u32) -> vec4<f32> {
    return w[panel + j];
}

fn weight(at: u32, j: u32) -> vec4<f32> {
    return w[at + j];
}

// Of a panel's step, for those that have many panels in hand.
fn tile_weight(panel: u32, step: u32, j: u32) -> vec4<f32> {
    return w[panel + 4u + step * 4u + j];
}
