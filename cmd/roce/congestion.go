package main

import (
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/verbs"
	"github.com/spf13/cobra"
)

// congestionFlags choose the congestion control of a device.
type congestionFlags struct {
	name controllerName
	rate bitRate
}

func (f *congestionFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.Var(&f.name, "cc", "congestion control by `NAME`: "+controllerNames()+" (default "+congestion.DefaultName+")")
	fs.Var(&f.rate, "line-rate", "`RATE` of the port, such as 25G, where dcqcn starts (default 25G)")
}

func (f *congestionFlags) configure(c *verbs.Config) {
	c.CongestionName, c.LineRate = string(f.name), congestion.BitRate(f.rate)
}

// controllerName is a flag value.
type controllerName string

func (n *controllerName) String() string { return string(*n) }
func (*controllerName) Type() string     { return "controller" }

func (n *controllerName) Set(s string) error {
	_, err := congestion.ByName(s, congestion.Options{})
	if err == nil {
		*n = controllerName(s)
	}
	return err
}

// bitRate is a flag value.
type bitRate congestion.BitRate

func (*bitRate) Type() string { return "rate" }

func (r *bitRate) String() string {
	if *r == 0 {
		return ""
	}
	return congestion.BitRate(*r).String()
}

func (r *bitRate) Set(s string) error {
	v, err := congestion.ParseBitRate(s)
	if err == nil {
		*r = bitRate(v)
	}
	return err
}
