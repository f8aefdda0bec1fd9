// `linear.wgsl` for drivers that compute on the processor; see `conv_lanes.wgsl`. One invocation: the columns of two panels for four
// rows, which are a multiple of four numbers long.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

// The sums, for a loop over them that is not unrolled: curves take the driver long to compile, and memory.
var<private> results: array<vec4<f32>, 32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own: u32) {
    let s = params.shape;
    if (id.x - own) * 4u >= s.rows {
        return;
    }
    // Lanes past the end compute what the last one does, and store nothing.
    let first = min(id.x * 4u, s.rows - 1u);
    let lane = own & 7u;
    // Where there is but one panel, it is computed twice, and stored once.
    let own_panel = id.y * 2u;
    let panels = min(2u, s.panels - own_panel);
    let column = (s.first_panel + own_panel) * 16u;
    let w_first = params.call.w_at + own_panel * panel_fours(s.k);
    let apart = select(0u, panel_fours(s.k), panels > 1u);
    begin_sums(w_first, w_first + apart);
    var x_at: array<u32, 4>;
    for (var p = 0u; p < 4u; p++) {
        x_at[p] = params.call.x_at + min(first + p, s.rows - 1u) * s.k / 4u;
    }
    var w_at = steps_at(w_first) + lane;
    var k = 0u;
    loop {
        let a = w[w_at];
        let b = w[w_at + 8u];
        let c = w[w_at + apart];
        let d = w[w_at + apart + 8u];
        add_panels(x[x_at[0] + k], x[x_at[1] + k], x[x_at[2] + k], x[x_at[3] + k], a, b, c, d);
        continuing {
            w_at += 16u;
            k++;
            break if k >= s.k / 4u;
        }
    }
    if id.x * 4u >= s.rows {
        return;
    }
    for (var p = 0u; p < 4u; p++) {
        for (var j = 0u; j < 8u; j++) {
            results[p * 8u + j] = sums[p][j];
        }
    }
    let count = min(4u, s.rows - first);
    let columns = min(panels * 16u, s.n - column);
    for (var p = 0u; p < count; p++) {
        for (var j = 0u; j * 4u < columns; j++) {
            finish(first + p, column + j * 4u, results[p * 8u + j]);
        }
    }
}
