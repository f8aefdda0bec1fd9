// Convolution of a plain image by tiles, blocked out: see `tiles.wgsl`. Steps are channels of a tap, tap by tap.

@group(0) @binding(1) var<storage, read> x: array<f32>;

var<private> x_first: u32;

fn begin(local: u32, first_row: u32, group_z: u32, first_panel: u32, log: Tile) {
    let s = params.shape;
    image = group_z;
    x_first = params.call.x_at + image * s.c_in * s.in_h * s.in_w;
    note_windows(local, first_row, log);
}

fn note(first: u32, local: u32) {}

fn panel_steps() -> u32 {
    return params.shape.c_in * params.shape.kernel_h * params.shape.kernel_w;
}

fn all_steps() -> u32 {
    return panel_steps();
}

// Neighbouring places lie side by side.
fn place_of(at: u32, log: Tile) -> vec2<u32> {
    return vec2<u32>(at & ((1u << log.rows) - 1u), at >> log.rows);
}

fn place_one(step: u32, place: u32) -> f32 {
    let s = params.shape;
    let tap = step / s.c_in;
    let row = windows[place].x + i32(tap / s.kernel_w * s.dilation_h);
    let col = windows[place].y + i32(tap % s.kernel_w * s.dilation_w);
    if row < 0 || row >= i32(s.in_h) || col < 0 || col >= i32(s.in_w) || step >= panel_steps() {
        return 0.0;
    }
    return x[x_first + (step % s.c_in * s.in_h + u32(row)) * s.in_w + u32(col)];
}

fn place_four(first: u32, place: u32, four: u32) -> vec4<f32> {
    let step = first + four * 4u;
    return vec4<f32>(place_one(step, place), place_one(step + 1u, place), place_one(step + 2u, place), place_one(step + 3u, place));
}

fn step_of(first: u32, k: u32) -> u32 {
    return select(NO_STEP, first + k, first + k < panel_steps());
}
