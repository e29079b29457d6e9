import type { Dashboard } from './node_modules/@grafana/schema/dist/types/veneer/dashboard.types';
import type { Options as BarChart, FieldConfig as BarChartField } from '@grafana/schema/dist/esm/raw/composable/barchart/panelcfg/x/BarChartPanelCfg_types.gen';
import type { Options as BarGauge } from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type { Options as Canvas } from '@grafana/schema/dist/esm/raw/composable/canvas/panelcfg/x/CanvasPanelCfg_types.gen';
import type { Options as Gauge } from '@grafana/schema/dist/esm/raw/composable/gauge/panelcfg/x/GaugePanelCfg_types.gen';
import type { Options as Heatmap, FieldConfig as HeatmapField } from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type { Options as Histogram, FieldConfig as HistogramField } from '@grafana/schema/dist/esm/raw/composable/histogram/panelcfg/x/HistogramPanelCfg_types.gen';
import type { Options as PieChart, FieldConfig as PieChartField } from '@grafana/schema/dist/esm/raw/composable/piechart/panelcfg/x/PieChartPanelCfg_types.gen';
import type { Options as Stat } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as StateTimeline, FieldConfig as StateTimelineField } from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type { Options as StatusHistory, FieldConfig as StatusHistoryField } from '@grafana/schema/dist/esm/raw/composable/statushistory/panelcfg/x/StatusHistoryPanelCfg_types.gen';
import type { Options as Table, FieldConfig as TableField } from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type { Options as Text } from '@grafana/schema/dist/esm/raw/composable/text/panelcfg/x/TextPanelCfg_types.gen';
import type { Options as TimeSeries, FieldConfig as TimeSeriesField } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { Options as Trend, FieldConfig as TrendField } from '@grafana/schema/dist/esm/raw/composable/trend/panelcfg/x/TrendPanelCfg_types.gen';
import type { Options as XYChart, FieldConfig as XYChartField } from '@grafana/schema/dist/esm/raw/composable/xychart/panelcfg/x/XYChartPanelCfg_types.gen';

type None = Record<string, never>;

export interface Schema {
  dashboard: Dashboard;
  barchart: { options: BarChart; custom: BarChartField };
  bargauge: { options: BarGauge; custom: None };
  canvas: { options: Canvas; custom: None };
  gauge: { options: Gauge; custom: None };
  heatmap: { options: Heatmap; custom: HeatmapField };
  histogram: { options: Histogram; custom: HistogramField };
  piechart: { options: PieChart; custom: PieChartField };
  stat: { options: Stat; custom: None };
  'state-timeline': { options: StateTimeline; custom: StateTimelineField };
  'status-history': { options: StatusHistory; custom: StatusHistoryField };
  table: { options: Table; custom: TableField };
  text: { options: Text; custom: None };
  timeseries: { options: TimeSeries; custom: TimeSeriesField };
  trend: { options: Trend; custom: TrendField };
  xychart: { options: XYChart; custom: XYChartField };
}
