//go:build !linux

package verbs

import "errors"

// watch exists on Linux only.
type watch struct{}

var errNoWatch = errors.New("changes of the interface are noticed on Linux only")

func openWatch(*port) (*watch, error)     { return nil, errNoWatch }
func (*watch) receive(bool) (bool, error) { return false, errNoWatch }
func (*watch) handle() error              { return errNoWatch }
func (*watch) close()                     {}
