// Rows times panels, plain in and out. One invocation: the 16 columns of a panel for four rows.

@group(0) @binding(1) var<storage, read> x: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    let first = id.x * 4u;
    if first >= s.rows {
        return;
    }
    let column = (s.first_panel + id.y) * 16u;
    let w_panel = params.call.w_at + id.y * panel_fours(s.k);
    begin_panel(w_panel);
    var x_at: array<u32, 4>;
    var y_at: array<u32, 4>;
    var sums: array<array<vec4<f32>, 4>, 4>;
    for (var p = 0u; p < 4u; p++) {
        let row = min(first + p, s.rows - 1u);
        x_at[p] = params.call.x_at + row * s.k;
        y_at[p] = row * s.n + column;
        for (var j = 0u; j < 4u; j++) {
            sums[p][j] = bias(w_panel, j);
            for (var lane = 0u; lane < 4u; lane++) {
                let at = j * 4u + lane;
                if column + at < s.n {
                    if params.call.residual == 1u {
                        sums[p][j][lane] += r[params.call.r_at + y_at[p] + at];
                    } else if params.call.residual == 2u {
                        sums[p][j][lane] += y[params.call.y_at + y_at[p] + at];
                    }
                }
            }
        }
    }
    var w_at = steps_at(w_panel);
    let step = step_fours();
    for (var k = 0u; k < s.k; k++) {
        let x0 = x[x_at[0] + k];
        let x1 = x[x_at[1] + k];
        let x2 = x[x_at[2] + k];
        let x3 = x[x_at[3] + k];
        for (var j = 0u; j < 4u; j++) {
            let weights = weight(w_at, j);
            sums[0][j] += x0 * weights;
            sums[1][j] += x1 * weights;
            sums[2][j] += x2 * weights;
            sums[3][j] += x3 * weights;
        }
        w_at += step;
    }
    for (var p = 0u; p < min(4u, s.rows - first); p++) {
        for (var j = 0u; j < 4u; j++) {
            let result = bound(sums[p][j]);
            for (var lane = 0u; lane < 4u; lane++) {
                let at = j * 4u + lane;
                if column + at < s.n {
                    y[params.call.y_at + y_at[p] + at] = result[lane];
                }
            }
        }
    }
    if is_bound() {
        return;
    }
    let columns = min(16u, s.n - column);
    for (var i = 0u; i < min(4u, s.rows - first) * columns; i++) {
        let at = params.call.y_at + (first + i / columns) * s.n + column + i % columns;
        y[at] = activate(vec4<f32>(y[at])).x;
    }
}
