// Rows times panels by tiles, plain in and out: see `tiles.wgsl`. Rows are a multiple of four numbers long.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

var<private> first_of_group: u32;

fn begin(local: u32, first_row: u32, group_z: u32, first_panel: u32, log: Tile) {
    first_of_group = first_row;
}

fn note(first: u32, local: u32) {}

fn panel_steps() -> u32 {
    return params.shape.k;
}

fn all_steps() -> u32 {
    return params.shape.k;
}

fn slice_panels() -> u32 {
    return params.shape.panels;
}

// Fours of a row lie one after the other.
fn place_of(at: u32, log: Tile) -> vec2<u32> {
    let fours_log = log.steps - 2u;
    return vec2<u32>(at >> fours_log, at & ((1u << fours_log) - 1u));
}

fn place_four(first: u32, place: u32, four: u32) -> vec4<f32> {
    let s = params.shape;
    let row = first_of_group + place;
    if row >= s.rows || first + four * 4u >= s.k {
        return vec4<f32>(0.0);
    }
    return x[params.call.x_at + row * (s.k / 4u) + first / 4u + four];
}

fn step_of(first: u32, k: u32) -> u32 {
    return select(NO_STEP, first + k, first + k < params.shape.k);
}

fn finish_tile(row: u32, own_panel: u32, j: u32, sum: vec4<f32>) {
    let s = params.shape;
    if row >= s.rows {
        return;
    }
    let start = bias(params.call.w_at + own_panel * panel_fours(s.k), j);
    finish(row, (s.first_panel + own_panel) * 16u + j * 4u, start + sum);
}
