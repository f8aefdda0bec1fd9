// Depthwise convolution of three by three, blocked in and out, for drivers that compute on the processor; see
// `conv_lanes.wgsl`. One invocation: four neighbouring channels at four neighbouring outputs of a row. The grid's third size
// counts the four fours of a panel for each image.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

// The input at a place of a row that begins there, or nothing beside the image.
fn input(row_at: u32, col: i32, is_row: bool) -> vec4<f32> {
    let is_inside = is_row && col >= 0 && col < i32(params.shape.in_w);
    return select(vec4<f32>(0.0), x[select(0u, row_at + u32(col) * 4u, is_inside)], is_inside);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own: u32) {
    let s = params.shape;
    let fours = (s.out_w + 3u) / 4u;
    if id.x - own >= s.out_h * fours {
        return;
    }
    // Lanes past the end compute what the last one does, and store nothing.
    let place = min(id.x, s.out_h * fours - 1u);
    let out_row = place / fours;
    let out_col = (place - out_row * fours) * 4u;
    let count = min(4u, s.out_w - out_col);
    let j = id.z % 4u;
    let panel = s.first_panel + id.y;
    let block = id.z / 4u * ((s.c_in + 15u) / 16u) + panel;
    let x_first = params.call.x_at + block * s.in_h * s.in_w * 4u + j;
    let y_first = ((block * s.out_h + out_row) * s.out_w + out_col) * 4u + j;
    let w_panel = params.call.w_at + id.y * panel_fours(9u);

    let start = bias(w_panel, j);
    var sums = array<vec4<f32>, 4>(start, start, start, start);
    for (var p = 0u; p < 4u; p++) {
        let origin = y_first + min(p, count - 1u) * 4u;
        if params.call.residual == 1u {
            sums[p] += r[params.call.r_at + origin];
        } else if params.call.residual == 2u {
            sums[p] += y[params.call.y_at + origin];
        }
    }
    let taps = steps_at(w_panel) + j;
    let eight = w[taps + (own & 7u) * 4u];
    let last = w[taps + 32u];
    let w0 = subgroupBroadcast(eight, 0u);
    let w1 = subgroupBroadcast(eight, 1u);
    let w2 = subgroupBroadcast(eight, 2u);
    let w3 = subgroupBroadcast(eight, 3u);
    let w4 = subgroupBroadcast(eight, 4u);
    let w5 = subgroupBroadcast(eight, 5u);
    let w6 = subgroupBroadcast(eight, 6u);
    let w7 = subgroupBroadcast(eight, 7u);
    let col = i32(out_col * s.stride_w) - i32(s.pad_w);
    for (var ky = 0u; ky < 3u; ky++) {
        let row = i32(out_row * s.stride_h + ky) - i32(s.pad_h);
        let is_row = row >= 0 && row < i32(s.in_h);
        let row_at = x_first + select(0u, u32(row) * s.in_w * 4u, is_row);
        let a = select(select(w0, w3, ky == 1u), w6, ky == 2u);
        let b = select(select(w1, w4, ky == 1u), w7, ky == 2u);
        let c = select(select(w2, w5, ky == 1u), last, ky == 2u);
        let x0 = input(row_at, col, is_row);
        let x1 = input(row_at, col + 1, is_row);
        let x2 = input(row_at, col + 2, is_row);
        let x3 = input(row_at, col + 3, is_row);
        let x4 = input(row_at, col + 4, is_row);
        let x5 = input(row_at, col + 5, is_row);
        sums[0] += x0 * a; sums[0] += x1 * b; sums[0] += x2 * c;
        if s.stride_w == 1u {
            sums[1] += x1 * a; sums[1] += x2 * b; sums[1] += x3 * c;
            sums[2] += x2 * a; sums[2] += x3 * b; sums[2] += x4 * c;
            sums[3] += x3 * a; sums[3] += x4 * b; sums[3] += x5 * c;
        } else {
            let x6 = input(row_at, col + 6, is_row);
            let x7 = input(row_at, col + 7, is_row);
            let x8 = input(row_at, col + 8, is_row);
            sums[1] += x2 * a; sums[1] += x3 * b; sums[1] += x4 * c;
            sums[2] += x4 * a; sums[2] += x5 * b; sums[2] += x6 * c;
            sums[3] += x6 * a; sums[3] += x7 * b; sums[3] += x8 * c;
        }
    }
    if id.x >= s.out_h * fours {
        return;
    }
    for (var p = 0u; p < count; p++) {
        y[params.call.y_at + y_first + p * 4u] = bound(sums[p]);
    }
    if is_bound() {
        return;
    }
    for (var p = 0u; p < count; p++) {
        let at = params.call.y_at + y_first + p * 4u;
        y[at] = activate(y[at]);
    }
}
