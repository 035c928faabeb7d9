//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "floor: segmentation offload of UDP is Linux's: this program runs there only")
	os.Exit(1)
}
