// Convolution over panels by tiles, blocked in and out: see `tiles.wgsl`. Steps are counted as if each block had 16 channels.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

// Of the blocks and taps that a turn has steps of: where their plane begins, the tap's row and column, the first step of the panel,
// and channels; none behind the last.
var<workgroup> blocks: array<vec4<u32>, 9>;

var<private> x_first: u32;

fn begin(local: u32, first_row: u32, group_z: u32, first_panel: u32, log: Tile) {
    let s = params.shape;
    image = group_z;
    let group = (s.first_panel + first_panel) * 16u / (s.c_out / s.groups);
    let planes_in = (s.c_in + 15u) / 16u;
    let channels = s.c_in / s.groups;
    x_first = params.call.x_at + (image * planes_in + group * channels / 16u) * s.in_h * s.in_w * 4u;
    note_windows(local, first_row, log);
}

fn note(first: u32, local: u32) {
    if local >= 9u {
        return;
    }
    let s = params.shape;
    let channels = s.c_in / s.groups;
    let taps = s.kernel_h * s.kernel_w;
    let at = first / 16u + local;
    let block = at / taps;
    let tap = at % taps;
    let width = min(16u, max(channels, block * 16u) - block * 16u);
    let row = tap / s.kernel_w * s.dilation_h;
    let col = tap % s.kernel_w * s.dilation_w;
    blocks[local] = vec4<u32>(block * s.in_h * s.in_w * 4u, row | (col << 16u), block * 16u * taps + tap * width, width);
}

fn panel_steps() -> u32 {
    return params.shape.c_in / params.shape.groups * params.shape.kernel_h * params.shape.kernel_w;
}

fn all_steps() -> u32 {
    let s = params.shape;
    return (s.c_in / s.groups + 15u) / 16u * 16u * s.kernel_h * s.kernel_w;
}

// Channels of a block lie one after the other, and then those of the next place.
fn place_of(at: u32, log: Tile) -> vec2<u32> {
    let fours_log = min(2u, log.steps - 2u);
    let four = at & ((1u << fours_log) - 1u);
    let block = at >> (fours_log + log.rows);
    return vec2<u32>((at >> fours_log) & ((1u << log.rows) - 1u), (block << 2u) + four);
}

fn place_four(first: u32, place: u32, four: u32) -> vec4<f32> {
    let s = params.shape;
    let step = first + four * 4u;
    let block = blocks[step / 16u - first / 16u];
    let row = windows[place].x + i32(block.y & 0xffffu);
    let col = windows[place].y + i32(block.y >> 16u);
    let channel = step & 15u;
    if row < 0 || row >= i32(s.in_h) || col < 0 || col >= i32(s.in_w) || channel >= block.w {
        return vec4<f32>(0.0);
    }
    let found = x[x_first + block.x + u32(row * i32(s.in_w) + col) * 4u + channel / 4u];
    // What lies behind the last channel may be anything.
    return select(vec4<f32>(0.0), found, vec4<u32>(channel) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(block.w));
}

fn step_of(first: u32, k: u32) -> u32 {
    let step = first + k;
    let block = blocks[step / 16u - first / 16u];
    return select(NO_STEP, block.z + (step & 15u), (step & 15u) < block.w);
}
