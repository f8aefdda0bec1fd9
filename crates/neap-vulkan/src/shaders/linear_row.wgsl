// As `linear`, for few rows: one workgroup for each panel and row, whose invocations share the products among them, four at a time.

@group(0) @binding(1) var<storage, read> x: array<f32>;

var<workgroup> parts: array<vec4<f32>, 256>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let s = params.shape;
    let j = local % 4u;
    let column = (s.first_panel + group.y) * 16u;
    let w_panel = params.call.w_at + group.y * panel_fours(s.k);
    begin_panel(w_panel);
    let w_first = steps_at(w_panel);
    let step = step_fours();
    let x_first = params.call.x_at + group.x * s.k;
    var sum_0 = vec4<f32>(0.0);
    var sum_1 = vec4<f32>(0.0);
    var sum_2 = vec4<f32>(0.0);
    var sum_3 = vec4<f32>(0.0);
    var k = local / 4u;
    for (; k + 192u < s.k; k += 256u) {
        let w_0 = weight(w_first + k * step, j);
        let w_1 = weight(w_first + (k + 64u) * step, j);
        let w_2 = weight(w_first + (k + 128u) * step, j);
        let w_3 = weight(w_first + (k + 192u) * step, j);
        sum_0 += x[x_first + k] * w_0;
        sum_1 += x[x_first + k + 64u] * w_1;
        sum_2 += x[x_first + k + 128u] * w_2;
        sum_3 += x[x_first + k + 192u] * w_3;
    }
    for (; k < s.k; k += 64u) {
        sum_0 += x[x_first + k] * weight(w_first + k * step, j);
    }
    parts[local] = (sum_0 + sum_1) + (sum_2 + sum_3);
    workgroupBarrier();
    for (var apart = 128u; apart >= 4u; apart /= 2u) {
        if local < apart {
            parts[local] += parts[local + apart];
        }
        workgroupBarrier();
    }
    if local < 4u {
        finish(group.x, column + j * 4u, bias(w_panel, j) + parts[local]);
    }
}
