// Convolution in groups 1, 2, 4 or 8 wide, as wide in as out; with groups 1 wide it is the depthwise one. Blocked in and out.
// One invocation: four neighbouring channels at one output.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    let positions = s.out_h * s.out_w;
    let position = id.x / 4u;
    let j = id.x % 4u;
    if position >= positions {
        return;
    }
    let panel = s.first_panel + id.y;
    let width = s.c_in / s.groups;
    let planes = (s.c_in + 15u) / 16u;
    let x_first = params.call.x_at + (id.z * planes + panel) * s.in_h * s.in_w * 16u;
    let y_at = ((id.z * planes + panel) * positions + position) * 4u + j;
    let w_panel = params.call.w_at + id.y * panel_fours(width * s.kernel_h * s.kernel_w);
    begin_panel(w_panel);

    var sum = bias(w_panel, j);
    if params.call.residual == 1u {
        sum += r[params.call.r_at + y_at];
    } else if params.call.residual == 2u {
        sum += y[params.call.y_at + y_at];
    }
    var w_at = steps_at(w_panel);
    let step = step_fours();
    // The first channel of each lane's group, within the block.
    let group = (vec4<u32>(j * 4u) + vec4<u32>(0u, 1u, 2u, 3u)) / width * width;
    let first_row = i32(position / s.out_w * s.stride_h) - i32(s.pad_h);
    let first_col = i32(position % s.out_w * s.stride_w) - i32(s.pad_w);
    for (var ky = 0u; ky < s.kernel_h; ky++) {
        let row = first_row + i32(ky * s.dilation_h);
        for (var kx = 0u; kx < s.kernel_w; kx++) {
            let col = first_col + i32(kx * s.dilation_w);
            let is_inside = row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w);
            let origin = x_first + select(0u, u32(row * i32(s.in_w) + col) * 16u, is_inside);
            for (var c = 0u; c < width; c++) {
                let at = vec4<u32>(origin + c) + group;
                let values = vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]);
                sum += select(vec4<f32>(0.0), values, is_inside) * weight(w_at, j);
                w_at += step;
            }
        }
    }
    y[params.call.y_at + y_at] = activate(sum);
}
