// Of tiles whose places are outputs of an image.

@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

// Where the window of each place begins: its row and column.
var<workgroup> windows: array<vec2<i32>, 256>;

var<private> image: u32;

const OUTSIDE = -268435456;

fn note_windows(local: u32, first_row: u32, log: Tile) {
    let s = params.shape;
    if local < 1u << log.rows {
        let place = first_row + local;
        let is_there = place < s.out_h * s.out_w;
        let row = i32(place / s.out_w * s.stride_h) - i32(s.pad_h);
        let col = i32(place % s.out_w * s.stride_w) - i32(s.pad_w);
        windows[local] = select(vec2<i32>(OUTSIDE), vec2<i32>(row, col), is_there);
    }
}

fn slice_panels() -> u32 {
    return params.shape.kind;
}

fn finish_tile(place: u32, own_panel: u32, j: u32, sum: vec4<f32>) {
    let s = params.shape;
    let positions = s.out_h * s.out_w;
    if place >= positions {
        return;
    }
    let planes_out = (s.c_out + 15u) / 16u;
    let at = ((image * planes_out + s.first_panel + own_panel) * positions + place) * 4u + j;
    var result = sum + bias(params.call.w_at + own_panel * panel_fours(panel_steps()), j);
    if params.call.residual == 1u {
        result += r[params.call.r_at + at];
    } else if params.call.residual == 2u {
        result += y[params.call.y_at + at];
    }
    y[params.call.y_at + at] = activate(result);
}
