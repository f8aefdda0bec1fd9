// Convolution of a plain image with few channels, blocked out. One invocation: the 16 channels of a panel at one output.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    let positions = s.out_h * s.out_w;
    if id.x >= positions {
        return;
    }
    let panel = s.first_panel + id.y;
    let plane = s.in_h * s.in_w;
    let x_first = params.call.x_at + id.z * s.c_in * plane;
    let planes_out = (s.c_out + 15u) / 16u;
    let y_first = ((id.z * planes_out + panel) * positions + id.x) * 4u;
    let w_panel = params.call.w_at + id.y * panel_fours(s.c_in * s.kernel_h * s.kernel_w);
    begin_panel(w_panel);

    var sums: array<vec4<f32>, 4>;
    for (var j = 0u; j < 4u; j++) {
        sums[j] = bias(w_panel, j);
        if params.call.residual == 1u {
            sums[j] += r[params.call.r_at + y_first + j];
        } else if params.call.residual == 2u {
            sums[j] += y[params.call.y_at + y_first + j];
        }
    }
    var w_at = steps_at(w_panel);
    let step = step_fours();
    let first_row = i32(id.x / s.out_w * s.stride_h) - i32(s.pad_h);
    let first_col = i32(id.x % s.out_w * s.stride_w) - i32(s.pad_w);
    for (var ky = 0u; ky < s.kernel_h; ky++) {
        let row = first_row + i32(ky * s.dilation_h);
        for (var kx = 0u; kx < s.kernel_w; kx++) {
            let col = first_col + i32(kx * s.dilation_w);
            let is_inside = row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w);
            let origin = x_first + select(0u, u32(row * i32(s.in_w) + col), is_inside);
            for (var c = 0u; c < s.c_in; c++) {
                let value = select(0.0, x[origin + c * plane], is_inside);
                for (var j = 0u; j < 4u; j++) {
                    sums[j] += value * weight(w_at, j);
                }
                w_at += step;
            }
        }
    }
    for (var j = 0u; j < 4u; j++) {
        y[params.call.y_at + y_first + j] = bound(sums[j]);
    }
    if is_bound() {
        return;
    }
    for (var i = 0u; i < 4u * min(1u, s.c_out); i++) {
        let at = params.call.y_at + y_first + i;
        y[at] = activate(y[at]);
    }
}
