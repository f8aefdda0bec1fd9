// Depthwise convolution of three by three, blocked in and out, for drivers that compute on the processor; see
// `conv_lanes.wgsl`. One invocation: four neighbouring channels at four neighbouring outputs of a row; where windows are one
// place apart, of the next row, too, which shares most of the input. The grid's third size counts the four fours of a panel
// for each image.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

const ROWS = 3u - STRIDE;

var<private> sums: array<array<vec4<f32>, 4>, 2>;

// The input at a place of a row that begins there, or nothing beside the image.
fn input(row_at: u32, col: i32, is_row: bool) -> vec4<f32> {
    let is_inside = is_row && col >= 0 && col < i32(params.shape.in_w);
    return select(vec4<f32>(0.0), x[select(0u, row_at + u32(col) * 4u, is_inside)], is_inside);
}

// As many places of a row as the windows of four outputs have.
fn places(first: u32, row: i32, col: i32) -> array<vec4<f32>, 9> {
    let is_row = row >= 0 && row < i32(params.shape.in_h);
    let at = first + select(0u, u32(row) * params.shape.in_w * 4u, is_row);
    var found: array<vec4<f32>, 9>;
    found[0] = input(at, col, is_row);
    found[1] = input(at, col + 1, is_row);
    found[2] = input(at, col + 2, is_row);
    found[3] = input(at, col + 3, is_row);
    found[4] = input(at, col + 4, is_row);
    found[5] = input(at, col + 5, is_row);
    if STRIDE == 2u {
        found[6] = input(at, col + 6, is_row);
        found[7] = input(at, col + 7, is_row);
        found[8] = input(at, col + 8, is_row);
    }
    return found;
}

// A row of taps for a row of outputs.
fn add(row: u32, x: array<vec4<f32>, 9>, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) {
    sums[row][0] += x[0] * a;
    sums[row][0] += x[1] * b;
    sums[row][0] += x[2] * c;
    sums[row][1] += x[STRIDE] * a;
    sums[row][1] += x[STRIDE + 1u] * b;
    sums[row][1] += x[STRIDE + 2u] * c;
    sums[row][2] += x[2u * STRIDE] * a;
    sums[row][2] += x[2u * STRIDE + 1u] * b;
    sums[row][2] += x[2u * STRIDE + 2u] * c;
    sums[row][3] += x[3u * STRIDE] * a;
    sums[row][3] += x[3u * STRIDE + 1u] * b;
    sums[row][3] += x[3u * STRIDE + 2u] * c;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own: u32) {
    let s = params.shape;
    let fours = (s.out_w + 3u) / 4u;
    let all = (s.out_h + ROWS - 1u) / ROWS * fours;
    if id.x - own >= all {
        return;
    }
    // Lanes past the end compute what the last one does, and store nothing.
    let place = min(id.x, all - 1u);
    let out_row = place / fours * ROWS;
    let out_col = place % fours * 4u;
    let count = min(4u, s.out_w - out_col);
    let rows = min(ROWS, s.out_h - out_row);
    let j = id.z % 4u;
    let panel = s.first_panel + id.y;
    let block = id.z / 4u * ((s.c_in + 15u) / 16u) + panel;
    let x_first = params.call.x_at + block * s.in_h * s.in_w * 4u + j;
    let y_first = ((block * s.out_h + out_row) * s.out_w + out_col) * 4u + j;
    let w_panel = params.call.w_at + id.y * panel_fours(9u);

    let start = bias(w_panel, j);
    sums[0] = array<vec4<f32>, 4>(start, start, start, start);
    sums[1] = array<vec4<f32>, 4>(start, start, start, start);
    let taps = steps_at(w_panel) + j;
    let eight = w[taps + (own & 7u) * 4u];
    let w0 = subgroupBroadcast(eight, 0u);
    let w1 = subgroupBroadcast(eight, 1u);
    let w2 = subgroupBroadcast(eight, 2u);
    let w3 = subgroupBroadcast(eight, 3u);
    let w4 = subgroupBroadcast(eight, 4u);
    let w5 = subgroupBroadcast(eight, 5u);
    let w6 = subgroupBroadcast(eight, 6u);
    let w7 = subgroupBroadcast(eight, 7u);
    let w8 = w[taps + 32u];
    let row = i32(out_row * STRIDE) - i32(s.pad_h);
    let col = i32(out_col * STRIDE) - i32(s.pad_w);
    let x0 = places(x_first, row, col);
    add(0u, x0, w0, w1, w2);
    let x1 = places(x_first, row + 1, col);
    add(0u, x1, w3, w4, w5);
    let x2 = places(x_first, row + 2, col);
    add(0u, x2, w6, w7, w8);
    if ROWS == 2u {
        add(1u, x1, w0, w1, w2);
        add(1u, x2, w3, w4, w5);
        let x3 = places(x_first, row + 3, col);
        add(1u, x3, w6, w7, w8);
    }
    if id.x >= all {
        return;
    }
    for (var p = 0u; p < 4u; p++) {
        if p < count {
            finish(y_first + p * 4u, sums[0][p]);
        }
    }
    if ROWS == 2u {
        if rows > 1u {
            for (var p = 0u; p < 4u; p++) {
                if p < count {
                    finish(y_first + (s.out_w + p) * 4u, sums[1][p]);
                }
            }
        }
    }
    if !MORE || is_bound() {
        return;
    }
    for (var i = 0u; i < rows * count; i++) {
        curve(y_first + (i / count * s.out_w + i % count) * 4u);
    }
}
