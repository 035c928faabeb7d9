package main

import (
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// newTable returns a table in the style of all subcommands. title may be empty;
// the columns in numeric, counted from 1, are aligned to the right.
func newTable(w io.Writer, title string, header table.Row, numeric ...int) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.Style().Format.Footer = text.FormatDefault
	t.Style().Title.Align = text.AlignLeft
	if title != "" {
		t.SetTitle(title)
	}
	t.AppendHeader(header)
	var right []table.ColumnConfig
	for _, n := range numeric {
		right = append(right, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	return t
}
