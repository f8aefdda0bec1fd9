// As `linear`, for few rows: one workgroup for each panel and row, whose invocations share the products among them.

@group(0) @binding(1) var<storage, read> x: array<f32>;

var<workgroup> parts: array<vec4<f32>, 64>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let s = params.shape;
    let j = local % 4u;
    let column = (s.first_panel + group.y) * 16u;
    let w_panel = params.call.w_at + group.y * panel_fours(s.k);
    begin_panel(w_panel);
    let w_first = steps_at(w_panel);
    let step = step_fours();
    let x_first = params.call.x_at + group.x * s.k;
    var sum = vec4<f32>(0.0);
    for (var k = local / 4u; k < s.k; k += 16u) {
        sum += x[x_first + k] * weight(w_first + k * step, j);
    }
    parts[local] = sum;
    workgroupBarrier();
    for (var apart = 32u; apart >= 4u; apart /= 2u) {
        if local < apart {
            parts[local] += parts[local + apart];
        }
        workgroupBarrier();
    }
    if local < 4u {
        finish(group.x, column + j * 4u, bias(w_panel, j) + parts[local]);
    }
}
